// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// program is the drover-machine under test.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "drover-machine-")
	if err == nil {
		program = filepath.Join(dir, "drover-machine")
		err = framework.BuildMachine(program)
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// host has the files and settings of a drover-machine.
type host struct {
	dir, image string
	qemu       string // to run in place of the usual one
	described  description.Machine
}

// newHost has an image and the description of a machine with a copy of it.
func newHost(t *testing.T, isStubborn bool) *host {
	t.Helper()
	dir := framework.ShortTempDir(t)
	h := &host{dir: dir, image: framework.BuildBootGuest(t, dir, "A", isStubborn)}
	h.described = description.Machine{
		Version: 1, UUID: newUUID(), Name: "web", CPUs: 1, MemoryBytes: 32 << 20, Accelerator: "tcg",
		RootDisk: &description.RootDisk{Disk: description.Disk{Folder: filepath.Join(dir, "disk"), Image: h.image}}, GracePeriodSeconds: 3600,
	}
	assert.NoError(t, os.Mkdir(h.described.RootDisk.Folder, 0o700))
	return h
}

// newUUID returns one that no other machine on this host has.
func newUUID() string {
	return fmt.Sprintf("5d0f0b0e-3a5c-4b7e-%04x-%012x", os.Getpid()&0xffff, time.Now().UnixNano()&(1<<48-1))
}

// guest is a drover-machine that was started.
type guest struct {
	*exec.Cmd

	h        *host
	reach    *control.Client // of a guest that is controlled
	run      string
	keyboard io.WriteCloser
	ended    chan struct{}
	signaled bool

	mu              sync.Mutex
	console, errors bytes.Buffer
}

// lockedWriter appends to a buffer of a guest.
type lockedWriter struct {
	mu *sync.Mutex
	to *bytes.Buffer
}

func (w lockedWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.to.Write(p)
}

// start starts a drover-machine with a new run folder.
func (h *host) start(t *testing.T) *guest {
	t.Helper()
	content, err := json.Marshal(h.described)
	run := framework.ShortTempDir(t)
	g := &guest{h: h, run: run, ended: make(chan struct{})}
	if err == nil {
		err = os.WriteFile(filepath.Join(run, "machine.json"), content, 0o600)
	}
	assert.NoError(t, err)
	g.Cmd = exec.CommandContext(t.Context(), program, "-description", filepath.Join(run, "machine.json"),
		"-run-folder", filepath.Join(run, "run"), "-termination-message", filepath.Join(run, "ended"))
	if h.qemu != "" {
		g.Env = append(os.Environ(), "PATH="+filepath.Dir(h.qemu)+":"+os.Getenv("PATH"))
	}
	g.Stdout, g.Stderr = lockedWriter{&g.mu, &g.console}, lockedWriter{&g.mu, &g.errors}
	g.Cancel = func() error { return nil } // the cleanup below ends QEMU too
	g.keyboard, err = g.StdinPipe()
	assert.NoError(t, err)
	return g
}

// begin starts a guest and waits until it has printed a text.
func (h *host) begin(t *testing.T, banner string) *guest {
	t.Helper()
	g := h.start(t)
	g.launch(t)
	g.waitFor(t, banner)
	return g
}

func (g *guest) launch(t *testing.T) {
	t.Helper()
	assert.NoError(t, g.Start())
	go func() {
		_ = g.Wait()
		close(g.ended)
	}()
	t.Cleanup(func() {
		if pid := g.qemu(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = g.Process.Kill()
		<-g.ended
		if t.Failed() {
			g.mu.Lock()
			defer g.mu.Unlock()
			t.Logf("drover-machine printed:\n%s%s", g.console.String(), g.errors.String())
		}
	})
}

func (g *guest) waitFor(t *testing.T, text string) {
	t.Helper()
	assert.Eventually(t, fmt.Sprintf("it prints %q", text), func(testing.TB) error {
		g.mu.Lock()
		defer g.mu.Unlock()
		if strings.Contains(g.console.String(), text) || strings.Contains(g.errors.String(), text) {
			return nil
		}
		return fmt.Errorf("it has printed %s%s", g.console.String(), g.errors.String())
	})
}

// qemu returns the process ID of the guest's QEMU, 0 for none.
func (g *guest) qemu() int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range names {
		if line, err := os.ReadFile(path); err == nil && bytes.Contains(line, []byte("-uuid\x00"+g.h.described.UUID)) {
			if cwd, _ := os.Readlink(filepath.Join(filepath.Dir(path), "cwd")); cwd == filepath.Join(g.run, "run") {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
				return pid
			}
		}
	}
	return 0
}

// wantEnd waits for the end of the program, and checks its exit code and message. No QEMU may be
// left.
func (g *guest) wantEnd(t *testing.T, code int, reason, message string) {
	t.Helper()
	assert.Eventually(t, "drover-machine ends", func(testing.TB) error {
		select {
		case <-g.ended:
			return nil
		default:
			return errors.New("it runs")
		}
	})
	got := g.readEnd(t)
	assert.True(t, g.ProcessState.ExitCode() == code && got.Reason == reason && strings.Contains(got.Message, message),
		"it ended with %d, %+v, want %d, %s, %q", g.ProcessState.ExitCode(), got, code, reason, message)
	assert.True(t, got.StopRequested == g.signaled, "it says %t of whether its end was requested", got.StopRequested)
	pid := g.qemu()
	assert.True(t, pid == 0, "QEMU %d is left", pid)
}

// readEnd reads the termination message.
func (g *guest) readEnd(t *testing.T) (got end) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(g.run, "ended"))
	if err == nil {
		err = json.Unmarshal(content, &got)
	}
	assert.ErrorIs(t, "the termination message", err, nil)
	return got
}

// shutDown asks for the end of a guest, which is to shut down by itself.
func (g *guest) shutDown(t *testing.T) {
	t.Helper()
	g.signal(t, syscall.SIGTERM)
	g.wantEnd(t, 0, "Completed", "")
}

// wantNotStarted runs a drover-machine that is to refuse what it is given.
func (h *host) wantNotStarted(t *testing.T, message string) *guest {
	t.Helper()
	g := h.start(t)
	g.launch(t)
	g.wantEnd(t, 7, "NotStarted", message)
	return g
}

func (g *guest) signal(t *testing.T, s os.Signal) {
	t.Helper()
	assert.NoError(t, g.Process.Signal(s))
	g.signaled = g.signaled || s == syscall.SIGTERM || s == os.Interrupt
}

func (g *guest) typeText(t *testing.T, text string) {
	t.Helper()
	assert.NoError(t, assert.ErrorOf(io.WriteString(g.keyboard, text)))
}
