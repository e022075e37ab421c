// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/proc"
)

// logTail is how much of QEMU's log an error includes, and outputTail how much the end
// of a run includes.
const logTail, outputTail = 500, 1 << 10

// wholeFile is the run lock: a lock on an open file, which QEMU inherits without knowing
// of it. The kernel frees it when the last process that holds it ends. So it shows
// reliably whether a server runs, and the process that starts a server takes it first.
var wholeFile = unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}

// running reports whether any process holds the run lock.
func (h instanceDir) running() (bool, error) {
	f, err := os.OpenFile(h.file(runLockFile), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	lock := wholeFile
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &lock); err != nil {
		return false, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return lock.Type != unix.F_UNLCK, nil
}

// claimRun takes the run lock for a process that is about to be started.
func (h instanceDir) claimRun() (*os.File, error) {
	f, err := os.OpenFile(h.file(runLockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	lock := wholeFile
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		return nil, errors.Join(driver.Errorf(driver.ErrRetry, "the server runs already: %w", err), f.Close())
	}
	return f, nil
}

// spawn starts QEMU in a session of its own; ended receives how that process ended. QEMU
// gets neither the controller's environment nor any of its files but the given ones.
func (h instanceDir) spawn(ctx context.Context, binary string, args []string, files []*os.File) (ended <-chan string, err error) {
	log, err := os.OpenFile(h.file(logFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary, args...) //nolint:gosec // made by arguments
	cmd.Dir = h.path
	cmd.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	proc.RaiseOOMScore(cmd.Process.Pid)
	over := make(chan string, 1)
	go func() {
		_ = cmd.Wait() // the process state has it too
		over <- cmd.ProcessState.String()
	}()
	return over, h.dir.ReplaceFleeting(h.file(pidFile), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"))
}

// pid returns the process ID of the server's QEMU. It takes it from the pid file where
// that is right, and else searches all processes. Zero means that there is none.
func (h instanceDir) pid(uid types.UID) int {
	if content, err := os.ReadFile(h.file(pidFile)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && h.isOurs(pid, uid) {
			return pid
		}
	}
	for _, pid := range proc.IDs() {
		if h.isOurs(pid, uid) {
			return pid
		}
	}
	return 0
}

// isOurs reports whether a process is the server's QEMU. That one works in the server's
// directory, even after a move, and has the UID on its command line.
func (h instanceDir) isOurs(pid int, uid types.UID) bool {
	here, err := os.Stat(h.path)
	if err != nil {
		return false
	}
	there, err := os.Stat(proc.Path(pid, "cwd"))
	return err == nil && os.SameFile(here, there) && proc.HasOption(pid, "-uuid", string(uid))
}

// accelOf returns the accelerator that a machine runs under.
func (d *Driver) accelOf(s server) string { return cmp.Or(s.Accelerator, d.findAccel(s)) }

// findAccel returns the accelerator of a machine that an older version started, which
// only its command line names. The accelerator does not change within a run.
func (d *Driver) findAccel(s server) string {
	type found struct{ run, accel string }
	if before, _ := d.foundAccel.Load(s.UID); before != nil && before.(found).run == s.Run {
		return before.(found).accel
	}
	accel := ""
	if pid := s.pid(s.UID); pid != 0 {
		for _, a := range []string{AccelKVM, AccelTCG} {
			if proc.HasOption(pid, "-accel", a) {
				accel = a
			}
		}
	}
	d.foundAccel.Store(s.UID, found{s.Run, accel})
	return accel
}

// kill ends the server's QEMU at once and waits until it is gone.
func (h instanceDir) kill(ctx context.Context, uid types.UID) error {
	found := h.pid(uid)
	if err := proc.Kill(ctx, found, func(pid int) bool { return h.isOurs(pid, uid) }); err != nil {
		return fmt.Errorf("killing the QEMU of %s: %w", uid, err)
	}
	err := h.untilOff(ctx, proc.KillWithin)
	if found == 0 && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("killing the QEMU of %s: its process cannot be found: does it run as another user than Drover, or in another container? %w", uid, err)
	}
	return err
}

// untilOff waits until no process holds the run lock.
func (h instanceDir) untilOff(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		on, err := h.running()
		if err != nil || !on {
			return err
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return fmt.Errorf("QEMU still runs: %w", ctx.Err())
		}
	}
}

// killStrays ends machines of a UID whose directory, or the run lock in it, was removed
// while they ran, as by restoring a backup. The caller knows that no QEMU holds the lock.
func (d *Driver) killStrays(ctx context.Context, uid types.UID) error {
	// The kernel reports a path without symbolic links.
	vms, err := filepath.EvalSymlinks(d.dir.Path(vmsDir))
	if err != nil {
		return d.dir.Explain(err)
	}
	here := filepath.Join(vms, string(uid))
	isStray := func(pid int) bool {
		cwd, err := os.Readlink(proc.Path(pid, "cwd"))
		return err == nil && (cwd == here || cwd == here+" (deleted)") && proc.HasOption(pid, "-uuid", string(uid))
	}
	for _, pid := range proc.IDs() {
		if !isStray(pid) {
			continue
		}
		d.Log.Info("Machine ended: its directory, or the run lock in it, was removed", "uid", uid, "pid", pid)
		group := cgroup.GroupOf(pid, string(uid))
		if err := proc.Kill(ctx, pid, isStray); err != nil {
			return fmt.Errorf("killing the stray QEMU %d of %s: %w", pid, uid, err)
		}
		d.dropGroup(ctx, group)
	}
	return nil
}
