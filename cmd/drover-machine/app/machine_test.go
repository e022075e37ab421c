// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestLife checks that SIGTERM shuts a guest down, and that the next run has its disk, which
// no longer needs the image.
func TestLife(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	g := h.begin(t, "drover guest 1 A")
	g.shutDown(t)
	assert.NoError(t, os.Remove(h.image))
	g = h.begin(t, "drover guest 2 A")
	g.signal(t, os.Interrupt)
	g.wantEnd(t, 0, "Completed", "")
}

// TestConsole checks that what is typed reaches the guest, and that the exit code says
// how a guest ended by itself.
func TestConsole(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]struct {
		code   int
		reason string
	}{"x": {0, "Completed"}, "p": {3, "GuestPanicked"}} {
		t.Run(want.reason, func(t *testing.T) {
			t.Parallel()
			g := newHost(t, false).begin(t, "drover guest 1 A")
			g.typeText(t, key)
			g.wantEnd(t, want.code, want.reason, "")
		})
	}
}

// TestRestartOfGuest checks that a guest that resets itself has not ended.
func TestRestartOfGuest(t *testing.T) {
	t.Parallel()
	g := newHost(t, false).begin(t, "drover guest 1 A")
	g.typeText(t, "r")
	g.waitFor(t, "drover guest 2 A")
	g.shutDown(t)
}

func TestKilledQEMU(t *testing.T) {
	t.Parallel()
	g := newHost(t, false).begin(t, "drover guest 1 A")
	assert.NoError(t, syscall.Kill(g.qemu(), syscall.SIGKILL))
	g.wantEnd(t, 5, "Killed", "signal: killed")
}

// TestGracePeriod checks that a guest that ignores the button is ended in time, and that
// another SIGTERM changes nothing, while an interrupt does not wait for that.
func TestGracePeriod(t *testing.T) {
	t.Parallel()
	h := newHost(t, true)
	h.described.GracePeriodSeconds = 8
	g := h.begin(t, "drover guest 1 A")
	begun := time.Now()
	g.signal(t, syscall.SIGTERM)
	g.waitFor(t, "Pressing the power button")
	g.signal(t, syscall.SIGTERM)
	g.wantEnd(t, 6, "Forced", "did not shut down within 8 s")
	took := time.Since(begun)
	assert.True(t, took >= 5*time.Second, "it took %v of 8 s", took)
	h.described.GracePeriodSeconds = 600
	g = h.begin(t, "drover guest 2 A")
	g.signal(t, syscall.SIGTERM)
	g.waitFor(t, "Pressing the power button")
	g.signal(t, syscall.SIGINT)
	g.wantEnd(t, 6, "Forced", "interrupted again")
}

// TestKilledWhileItStops checks that the termination message of a program that is killed before its guest has
// shut down, as at the end of a short grace period, says that its end was requested.
func TestKilledWhileItStops(t *testing.T) {
	t.Parallel()
	h := newHost(t, true)
	h.described.GracePeriodSeconds = 600
	g := h.begin(t, "drover guest 1 A")
	g.signal(t, syscall.SIGTERM)
	g.waitFor(t, "Pressing the power button")
	qemu := g.qemu()
	g.signal(t, syscall.SIGKILL)
	<-g.ended
	assert.NoError(t, syscall.Kill(qemu, syscall.SIGKILL)) // a container would do that
	assert.Eventually(t, "QEMU has ended", func(testing.TB) error {
		pid := g.qemu()
		return assert.ErrorUnless(pid == 0, "there is %d", pid)
	})
	g.wantEnd(t, -1, "Killed", "before its guest had shut down")
}

// TestReadersGone checks that a guest outlives whoever reads its console and the log.
func TestReadersGone(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	assert.NoError(t, err)
	g := newHost(t, false).start(t)
	g.Stdout, g.Stderr = write, write
	g.launch(t)
	_ = write.Close()
	lines := bufio.NewScanner(read)
	for text := ""; !strings.Contains(text, "drover guest 1 A") && lines.Scan(); {
		text = lines.Text()
	}
	_ = read.Close()
	g.typeText(t, "hello") // which the guest repeats
	g.shutDown(t)
}

// TestSilentStart checks that a QEMU that never answers is given up, and by a signal at once.
func TestSilentStart(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	h.qemu = framework.QEMUScript(t, `for a; do [ "$a" != -chardev ] || { echo starting >&2; kill -STOP $$; }; done
exec qemu-system-x86_64 "$@"`)
	g := h.start(t)
	g.launch(t)
	assert.Eventually(t, "QEMU is started", func(testing.TB) error {
		_, err := os.Stat(filepath.Join(g.run, "run", "pid"))
		return err
	})
	g.signal(t, syscall.SIGTERM)
	g.wantEnd(t, 7, "NotStarted", "a stop was requested before the guest ran")
}

// TestSilentQEMU checks that a QEMU that does not answer is ended in time too.
func TestSilentQEMU(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	h.described.GracePeriodSeconds = 8
	g := h.begin(t, "drover guest 1 A")
	assert.NoError(t, syscall.Kill(g.qemu(), syscall.SIGSTOP))
	g.signal(t, syscall.SIGTERM)
	g.waitFor(t, "QEMU does not answer")
	g.wantEnd(t, 6, "Forced", "did not shut down within 8 s")
}

func TestEphemeral(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	h.described.RootDisk.Ephemeral = true
	before := framework.ReadFile(t, h.image)
	for range 2 {
		h.begin(t, "drover guest 1 A").shutDown(t)
	}
	assert.True(t, framework.ReadFile(t, h.image) == before, "the image was written to")
}

// TestGrownDisk checks that a disk keeps the format of its image, and grows.
func TestGrownDisk(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"raw", "qcow2"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, false)
			image := filepath.Join(h.dir, "image")
			framework.RunQEMUImg(t, "convert", "-f", "raw", "-O", format, h.image, image)
			h.described.RootDisk.Image = image
			for boot, size := range []int64{2 << 20, 5 << 20, 3 << 20} {
				h.described.RootDisk.SizeBytes = size
				g := h.begin(t, fmt.Sprintf("drover guest %d A", boot+1))
				g.shutDown(t)
				info := framework.RunQEMUImg(t, "info", "-f", format, filepath.Join(h.described.RootDisk.Folder, "root", "disk"))
				want := []string{"2 MiB", "5 MiB", "5 MiB"}[boot]
				assert.True(t, strings.Contains(info, "virtual size: "+want), "want %s, got %s", want, info)
			}
		})
	}
}

// TestDiskInUse checks that one disk has one machine, whatever run folders they have.
func TestDiskInUse(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	first := h.begin(t, "drover guest 1 A")
	second := h.start(t)
	second.launch(t)
	second.wantEnd(t, 7, "NotStarted", "lock")
	first.shutDown(t)
}

// TestDamagedDisk checks that a disk without a record is neither used nor made again, and that
// what an interrupted run has left of one is.
func TestDamagedDisk(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	folder := h.described.RootDisk.Folder
	unfinished := filepath.Join(folder, tempPrefix+"make-1")
	assert.NoError(t, os.Mkdir(unfinished, 0o700))
	g := h.begin(t, "drover guest 1 A")
	g.shutDown(t)
	_, err := os.Stat(unfinished)
	assert.True(t, err != nil, "an unfinished disk is left")
	disk := filepath.Join(folder, rootName, diskFile)
	before := framework.ReadFile(t, disk)
	assert.NoError(t, os.Remove(filepath.Join(folder, rootName, recordFile)))
	h.wantNotStarted(t, "repair "+filepath.Join(folder, rootName))
	assert.True(t, framework.ReadFile(t, disk) == before, "the disk was changed")
}

// TestDiskFault checks that a guest waits for its disk and goes on by itself once that works.
func TestDiskFault(t *testing.T) {
	t.Parallel()
	h := newHost(t, false)
	h.qemu = framework.FailingDiskScript(t, int(syscall.ENOSPC), 1)
	g := h.begin(t, "no space left on device")
	g.waitFor(t, "drover guest 1 A")
	g.waitFor(t, "Guest continues")
	g.shutDown(t)
}

// TestStopWhileMaking checks that a machine that is to stop neither finishes its disk first, nor waits for a server.
func TestStopWhileMaking(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]func(h *host){
		"copying": func(h *host) { assert.NoError(t, os.Truncate(h.image, 1<<40)) }, // whose zeros take minutes to read
		"fetching": func(h *host) {
			h.described.RootDisk.Image, h.described.RootDisk.Checksum = imageServer(t, h.image).URL+"/halted", checksumOf("")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, false)
			slow(h)
			g := h.begin(t, "Making a disk")
			g.signal(t, syscall.SIGTERM)
			g.wantEnd(t, 7, "NotStarted", "a stop was requested before the guest ran")
			left, err := os.ReadDir(h.described.RootDisk.Folder)
			assert.True(t, err == nil && len(left) == 0, "it has left %v, %v", left, err)
		})
	}
}

// TestStart checks what drover-machine says of itself at the start, and how much of it is resident.
func TestStart(t *testing.T) {
	t.Parallel()
	g := newHost(t, false).begin(t, "drover guest 1 A")
	g.waitFor(t, `accelerator=tcg confinement="it runs as user ID `)
	g.wantResident(t)
	g.shutDown(t)
}

// wantResident checks how much memory the program itself takes.
func (g *guest) wantResident(t *testing.T) {
	t.Helper()
	status := framework.ReadFile(t, fmt.Sprintf("/proc/%d/status", g.Process.Pid))
	_, rest, _ := strings.Cut(status, "VmRSS:")
	const most = 20 << 10
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if t.Logf("%d KiB are resident", kib); err != nil || kib > most {
		t.Errorf("%d KiB are resident, %v: at most %d are allowed", kib, err, most)
	}
}

func TestNotStarted(t *testing.T) {
	t.Parallel()
	for says, c := range map[string]struct {
		change    func(h *host)
		arguments []string
		code      int
		reason    string
	}{
		"cpus is 0: it must be from 1 to": {func(h *host) { h.described.CPUs = 0 }, nil, 8, "InvalidDescription"},
		`unexpected argument "start"`:     {func(*host) {}, []string{"start"}, 8, "InvalidDescription"},
		"none: no such file":              {func(h *host) { h.described.RootDisk.Image = filepath.Join(h.dir, "none") }, nil, 7, "NotStarted"},
		"control.folder: open /none/": {
			func(h *host) { h.described.Control = &description.Control{Port: controlPort, Folder: "/none"} }, nil, 7, "NotStarted",
		},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, false)
			c.change(h)
			g := h.start(t)
			g.Args = append(g.Args, c.arguments...)
			g.launch(t)
			g.wantEnd(t, c.code, c.reason, says)
		})
	}
}

// TestOrphans checks that the first process of a container leaves no zombies, and that it still
// learns how QEMU has ended.
func TestOrphans(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "make a PID namespace")
	g := newHost(t, false).start(t)
	g.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	// /proc has to be that of the namespace.
	g.Args = append([]string{"sh", "-c", `mount -t proc proc /proc && exec "$0" "$@"`, program}, g.Args[1:]...)
	shell, err := exec.LookPath("sh")
	assert.NoError(t, err)
	g.Path = shell
	g.launch(t)
	g.waitFor(t, "drover guest 1 A")
	for range 3 {
		pid := strconv.Itoa(g.Process.Pid)
		orphan, _ := framework.MustRunCommand(t, framework.CommandTimeout, nil, "nsenter", "--target", pid, "--pid", "sh", "-c", "sleep 0.1 >/dev/null 2>&1 & echo $!")
		assert.Eventually(t, "the orphan is reaped", func(testing.TB) error {
			stat, err := os.ReadFile(filepath.Join("/proc", pid, "root/proc", strings.TrimSpace(orphan), "stat"))
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("it is there: %s, %w", stat, err)
			}
			return nil
		})
	}
	assert.NoError(t, syscall.Kill(g.qemu(), syscall.SIGKILL))
	g.wantEnd(t, 5, "Killed", "signal: killed")
}
