// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/vmtest"
)

// smallDisk gives the engine's folder a disk of its own, of so many MiB.
func (e *engine) smallDisk(t *testing.T, size int) {
	t.Helper()
	must(t, os.Mkdir(e.dir, 0o700))
	err := unix.Mount("drover-test", e.dir, "tmpfs", 0, sizeOption(size))
	if errors.Is(err, unix.EPERM) {
		t.Skip("a disk that is full needs a file system of its own, and mounting one is not allowed here: run the tests as root")
	}
	must(t, err)
	t.Cleanup(func() { must(t, unix.Unmount(e.dir, unix.MNT_DETACH)) })
}

func sizeOption(size int) string { return fmt.Sprintf("size=%dm", size) }

// fill takes what is left of the disk; the file that does is returned.
func (e *engine) fill(t *testing.T) string {
	t.Helper()
	path := filepath.Join(e.dir, "filler")
	f, err := os.Create(path)
	must(t, err)
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	must(t, f.Close())
	return path
}

// TestDiskFullFetching : what came of an image that does not leave room for others
// is thrown away.
func TestDiskFullFetching(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.smallDisk(t, 2)
	d := e.open(t)
	content, err := os.ReadFile(e.plain)
	must(t, err)
	content = append(content, make([]byte, 3<<20)...)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })) // of a length that is not told
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL, Checksum: fmt.Sprintf("sha256:%x", sha256.Sum256(content))}
	wantError(t, d.waitFor(t, spec), driver.ErrRetry, "it has at least", "bytes are free on the disk of "+e.dir, driver.ReasonImageUnavailable)
	leavesNothing(t, d)
	if have, err := d.images.List(); err != nil || len(have) != 0 {
		t.Errorf("the store has %v, %v", have, err)
	}
	must(t, unix.Mount("drover-test", e.dir, "tmpfs", unix.MS_REMOUNT, sizeOption(32)))
	reach(t, d, spec, driver.StateRunning)
	serial(t, d, spec, "drover guest 1 A")
	gone(t, d, spec)
}

// TestDiskFullCreating : a server that has no room is not made, and one that has
// none to start is as it was.
func TestDiskFullCreating(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.smallDisk(t, 8)
	d := e.open(t)
	off := e.spec()
	off.Power = driver.PowerOff
	filler := e.fill(t)
	_, err := d.Ensure(t.Context(), off)
	wantError(t, err, driver.ErrExhausted, "no room left on its disk", "no space left on device")
	leavesNothing(t, d)
	must(t, os.Remove(filler))
	reach(t, d, off, driver.StateStopped)

	on := off
	on.Power = driver.PowerOn
	filler = e.fill(t)
	_, err = d.Ensure(t.Context(), on)
	wantError(t, err, driver.ErrExhausted, "no room left on its disk")
	servers, err := d.List(t.Context(), on.UID)
	must(t, err)
	if len(servers) != 1 || servers[0].State != driver.StateStopped || d.home(on.UID).pid(on.UID) != 0 {
		t.Errorf("it is %+v", servers)
	}
	must(t, os.Remove(filler))
	reach(t, d, on, driver.StateRunning)
	serial(t, d, on, "drover guest 1 A")
	gone(t, d, on)
	leavesNothing(t, d)
}

// TestDiskFullRunning : a guest whose disk cannot grow waits, says so, and goes on
// where it was once there is room.
func TestDiskFullRunning(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.smallDisk(t, 8)
	d := e.open(t)
	paused := e.spec()
	paused.Power = driver.PowerPaused
	before := reach(t, d, paused, driver.StatePaused)
	filler := e.fill(t)
	on := paused
	on.Power = driver.PowerOn
	vmtest.Eventually(t, patience, "the guest waits", func() error {
		_, _ = d.Ensure(t.Context(), on)
		servers, err := d.List(t.Context(), on.UID)
		if err != nil || len(servers) != 1 || servers[0].Err == nil || !strings.Contains(servers[0].Err.Error(), "disk is full") {
			return fmt.Errorf("it is %+v, %w", servers, err)
		}
		return nil
	})
	_, err := d.Ensure(t.Context(), on)
	wantError(t, err, driver.ErrExhausted, "resume of server", "disk is full")
	must(t, os.Remove(filler))
	after := reach(t, d, on, driver.StateRunning)
	serial(t, d, on, "drover guest 1 A")
	if after.Run != before.Run {
		t.Error("it was started anew")
	}
	gone(t, d, on)
}
