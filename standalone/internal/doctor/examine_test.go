// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// newHost returns a host as the command makes it.
func newHost(t *testing.T, path string) *Host {
	t.Helper()
	h := NewHost(datadir.Layout(path), "v1", clock.RealClock{})
	h.BindAddress, h.VMDriver, h.QEMU = "127.0.0.1", "auto", *qemu.DefaultOptions()
	h.QEMU.Dir = filepath.Join(h.Layout.Drivers(), qemu.Name)
	return h
}

// makeDataDir makes the data dir of a Drover that was ready once and has stopped.
func makeDataDir(t *testing.T) datadir.Layout {
	t.Helper()
	dir, err := datadir.Open(filepath.Join(t.TempDir(), "d"))
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(dir.SetPort(freePort(t)), dir.SetClusterID("cluster-1"), os.WriteFile(dir.Engines(), []byte(`[{"driver": "fake", "dir": "/nowhere"}]`), 0o600)))
	_, err = (&pki.Store{Dir: dir.PKI(), Clock: clock.RealClock{}, Hosts: func() []string { return []string{"localhost"} }}).Ensure()
	assert.NoError(t, err)
	assert.NoError(t, dir.Close())
	return dir.Layout
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port
}

// TestExamine runs all checks on data dirs in every condition: each check ends, none fails by
// itself, and none changes anything.
func TestExamine(t *testing.T) {
	for name, c := range map[string]struct {
		make  func(t *testing.T) string
		wants map[string]findings.Level
	}{
		"none":    {func(t *testing.T) string { t.Helper(); return filepath.Join(t.TempDir(), "some", "where") }, map[string]findings.Level{"data-dir": note}},
		"empty":   {func(t *testing.T) string { t.Helper(); return t.TempDir() }, map[string]findings.Level{"disk": ""}},
		"foreign": {makeForeign, map[string]findings.Level{"data-dir": mistaken}},
		"a file": {func(t *testing.T) string {
			t.Helper()
			path := filepath.Join(t.TempDir(), "f")
			assert.NoError(t, os.WriteFile(path, nil, 0o600))
			return path
		}, map[string]findings.Level{"data-dir": mistaken}},
		"stopped": {func(t *testing.T) string { t.Helper(); return string(makeDataDir(t)) }, map[string]findings.Level{"data-dir": ok, "files": ok, "ports": ok}},
		"garbage": {makeGarbage, map[string]findings.Level{"data-dir": mistaken}},
		"folders": {makeFolders, map[string]findings.Level{"data-dir": mistaken}},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.make(t)
			before := framework.ListTree(t, path)
			found := newHost(t, path).Examine(t.Context())
			after := framework.ListTree(t, path)
			assert.True(t, slices.Equal(before, after), "the checks changed\n%q\nto\n%q", before, after)
			levels := map[string]findings.Level{}
			for _, f := range found {
				levels[f.Name] = worse(levels[f.Name], f.Level)
				assert.True(t, !strings.Contains(f.Observed, "the check failed") && !strings.Contains(f.Observed, "did not end"), "%s: %s", f.Name, f.Observed)
			}
			for check, want := range c.wants {
				assert.True(t, want == "" || levels[check] == want, "%s is %q, want %q: %+v", check, levels[check], want, found)
			}
		})
	}
}

// TestExamineAsPlainUser runs the same without root.
func TestExamineAsPlainUser(t *testing.T) {
	t.Parallel()
	framework.RunAsPlainUser(t, "TestExamine", "TestForeignFiles", "TestPipes", "TestPortOfAnother")
}

func worse(a, b findings.Level) findings.Level {
	return findings.Worst([]findings.Finding{{Level: a}, {Level: b}})
}

func makeForeign(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	assert.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.txt"), nil, 0o600))
	return dir
}

// makeGarbage makes a data dir whose files hold something else.
func makeGarbage(t *testing.T) string {
	t.Helper()
	l := makeDataDir(t)
	root, err := os.OpenRoot(string(l))
	assert.NoError(t, err)
	defer func() { _ = root.Close() }()
	assert.NoError(t, fs.WalkDir(root.FS(), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return root.WriteFile(path, []byte("\x00{garbage"), 0o600)
	}))
	assert.NoError(t, errors.Join(os.WriteFile(l.Kubeconfig(), []byte("{"), 0o600), os.WriteFile(l.RunState(), []byte("{"), 0o600)))
	return string(l)
}

// makeFolders makes a data dir with a folder in the place of every file.
func makeFolders(t *testing.T) string {
	t.Helper()
	l := makeDataDir(t)
	var files []string
	assert.NoError(t, filepath.WalkDir(string(l), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && filepath.Base(path) != "lock" {
			files = append(files, path)
		}
		return err
	}))
	for _, path := range append(files, l.Kubeconfig(), l.RunState()) {
		assert.NoError(t, errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)))
	}
	return string(l)
}

// TestPipes checks that no check blocks on a pipe without a writer in the place of a file.
func TestPipes(t *testing.T) {
	t.Parallel()
	l := makeDataDir(t)
	for _, path := range []string{filepath.Join(string(l), "lock"), l.Engines(), l.RunState(), l.Kubeconfig(), filepath.Join(l.PKI(), "ca.pem")} {
		assert.NoError(t, errors.Join(os.RemoveAll(path), syscall.Mkfifo(path, 0o600)))
	}
	h := newHost(t, string(l))
	assert.True(t, h.PIDErr != nil && !h.isDroverRunning(), "it runs as %d, %v", h.PID, h.PIDErr)
	for _, f := range h.Examine(t.Context()) {
		assert.True(t, !strings.Contains(f.Observed, "did not end") && (f.Name != "data-dir" || strings.Contains(f.Observed, "not a regular file")), "%+v", f)
	}
}

// TestForeignFiles checks that a file which a command left as another user is found, and one
// that others may read.
func TestForeignFiles(t *testing.T) {
	l := makeDataDir(t)
	assert.NoError(t, os.WriteFile(l.Kubeconfig(), nil, 0o644))
	assert.NoError(t, os.Chmod(l.Kubeconfig(), 0o644))
	h := newHost(t, string(l))
	f := gatherFiles(t.Context(), h)
	assert.True(t, len(f.foreign) == 0 && slices.Equal(f.exposed, []string{l.Kubeconfig()}), "got %+v", f)
	if os.Geteuid() != 0 {
		return
	}
	path := filepath.Join(string(l), "logs", "other")
	assert.NoError(t, os.WriteFile(path, nil, 0o600))
	assert.NoError(t, os.Chown(path, 1234, 1234))
	f = gatherFiles(t.Context(), h)
	assert.True(t, slices.Equal(f.foreign, []string{path}), "got %+v", f)
}

// TestPortOfAnother checks that the program is named that has the port, and that a port is
// found free without being opened.
func TestPortOfAnother(t *testing.T) {
	l := makeDataDir(t)
	h := newHost(t, string(l))
	if got := gatherPorts(t.Context(), h); got.err != nil || got.ports[0].taken {
		t.Errorf("of a free one: %+v", got)
	}
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	defer func() { _ = taken.Close() }()
	h.Port = taken.Addr().(*net.TCPAddr).Port
	h.Addresses = map[string]string{"--metrics-bind-address": fmt.Sprintf(":%d", h.Port), "--pprof-bind-address": "0"}
	got := gatherPorts(t.Context(), h)
	assert.Require(t, len(got.ports) == 2, "got %+v", got)
	for _, p := range got.ports {
		assert.True(t, p.taken && p.owner == os.Getpid() && p.ownerName != "", "got %+v, want process %d", p, os.Getpid())
	}
}

// TestUserOfDrover checks whose rights count: those of the process that runs, else of the
// owner of the data dir.
func TestUserOfDrover(t *testing.T) {
	t.Parallel()
	own := findUser(os.Getpid(), "/nowhere")
	assert.True(t, own.ID == os.Geteuid() && own.GroupID == os.Getegid() && strings.HasPrefix(own.By, "runs process") && own.isCaller(), "of a process: %+v", own)
	if got := findUser(0, "/nowhere"); got.ID != os.Geteuid() || got.By != "runs this command" {
		t.Errorf("of the caller: %+v", got)
	}
	if os.Geteuid() != 0 {
		return
	}
	dir := t.TempDir()
	assert.NoError(t, os.Chown(dir, 1234, 1235))
	got := findUser(0, dir)
	assert.True(t, got.ID == 1234 && got.GroupID == 1235 && got.Name == "1234" && !got.isCaller(), "of the owner: %+v", got)
	secret := filepath.Join(t.TempDir(), "secret")
	assert.NoError(t, os.WriteFile(secret, nil, 0o600))
	assert.ErrorIs(t, "with the owner's rights", got.tryAs(func() error { _, err := os.ReadFile(secret); return err }), fs.ErrPermission)
}

// TestCommandLines checks the commands that findings name.
func TestCommandLines(t *testing.T) {
	t.Parallel()
	h := &Host{Layout: "/var/lib/drover", User: User{ID: os.Geteuid() + 1, Name: "other"}}
	got := h.commandLine("doctor")
	assert.True(t, got == "sudo drover doctor", "got %q", got)
	h.Layout = "/my data/it's"
	got = h.commandLine("image prune")
	assert.True(t, got == `sudo drover image prune --data-dir '/my data/it'\''s'`, "got %q", got)
}

// TestStateOfAnotherRun checks that the state of a run before is not taken for that of a
// Drover that is starting.
func TestStateOfAnotherRun(t *testing.T) {
	dir, err := datadir.Open(filepath.Join(t.TempDir(), "d"))
	assert.NoError(t, err)
	defer func() { _ = dir.Close() }()
	for _, pid := range []int{os.Getpid(), os.Getpid() + 1} {
		content, err := json.Marshal(runstate.State{PID: pid, StartedAt: time.Now()})
		assert.NoError(t, errors.Join(err, dir.SetRunState(content)))
		h := newHost(t, string(dir.Layout))
		assert.True(t, h.PID == os.Getpid() && (h.State != nil) == (pid == os.Getpid()), "the state is of process %d: got %+v of process %d", pid, h.State, h.PID)
	}
}
