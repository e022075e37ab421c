// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
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
)

const (
	// endsWithin is how long a killed QEMU may take to be gone.
	endsWithin = 5 * time.Second
	// lookEvery is the interval between two looks at a process.
	lookEvery = 5 * time.Millisecond
	// logTail is how much of QEMU's log an error includes, and outputTail how much the end
	// of a run includes.
	logTail, outputTail = 500, 1 << 10
)

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
	endsFirst(cmd.Process.Pid)
	over := make(chan string, 1)
	go func() {
		_ = cmd.Wait() // the process state has it too
		over <- cmd.ProcessState.String()
	}()
	return over, h.dir.ReplaceVolatile(h.file(pidFile), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"))
}

// endsFirst makes the kernel, when memory runs out, end a guest before the controller
// that manages all guests. A process may always make itself, and those of its user, the
// likelier choice.
func endsFirst(pid int) {
	const step, highest = 300, 1000
	file := func(pid int) string { return procPath(pid, "oom_score_adj") }
	text, err := os.ReadFile(file(os.Getpid()))
	if err != nil {
		return
	}
	if own, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		_ = os.WriteFile(file(pid), []byte(strconv.Itoa(min(own+step, highest))), 0o600)
	}
}

// pid returns the process ID of the server's QEMU. It takes it from the pid file where
// that is right, and else searches all processes. Zero means that there is none.
func (h instanceDir) pid(uid types.UID) int {
	if content, err := os.ReadFile(h.file(pidFile)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && h.isOurs(pid, uid) {
			return pid
		}
	}
	for _, pid := range processes() {
		if h.isOurs(pid, uid) {
			return pid
		}
	}
	return 0
}

func processes() []int {
	names, _ := filepath.Glob("/proc/[0-9]*")
	pids := make([]int, 0, len(names))
	for _, name := range names {
		if pid, err := strconv.Atoi(filepath.Base(name)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isOurs reports whether a process is the server's QEMU. That one works in the server's
// directory, even after a move, and has the UID on its command line.
func (h instanceDir) isOurs(pid int, uid types.UID) bool {
	here, err := os.Stat(h.path)
	if err != nil {
		return false
	}
	there, err := os.Stat(procPath(pid, "cwd"))
	return err == nil && os.SameFile(here, there) && hasUUID(pid, uid)
}

func procPath(pid int, name string) string {
	return filepath.Join("/proc", strconv.Itoa(pid), name)
}

func hasUUID(pid int, uid types.UID) bool {
	line, err := os.ReadFile(procPath(pid, "cmdline"))
	return err == nil && bytes.Contains(line, []byte("\x00-uuid\x00"+string(uid)+"\x00"))
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
		line, _ := os.ReadFile(procPath(pid, "cmdline"))
		for _, a := range []string{AccelKVM, AccelTCG} {
			if bytes.Contains(line, []byte("\x00-accel\x00"+a+"\x00")) {
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
	if err := killProcess(ctx, found, func(pid int) bool { return h.isOurs(pid, uid) }); err != nil {
		return fmt.Errorf("killing the QEMU of %s: %w", uid, err)
	}
	err := h.untilOff(ctx, endsWithin)
	if found == 0 && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("killing the QEMU of %s: its process cannot be found: does it run as another user than Drover, or in another container? %w", uid, err)
	}
	return err
}

// killProcess kills a process and waits until it is gone. It uses a handle on the
// process, so that the one that was checked is the one that gets the signal.
func killProcess(ctx context.Context, pid int, isIt func(pid int) bool) error {
	if pid == 0 {
		return nil
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(handle) }()
	if !isIt(pid) {
		return nil
	}
	err = unix.PidfdSendSignal(handle, unix.SIGKILL, nil, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	return untilEnded(ctx, handle)
}

// untilEnded waits for a process to end. Its handle becomes readable once none of its
// threads runs any more.
func untilEnded(ctx context.Context, handle int) error {
	ctx, cancel := context.WithTimeout(ctx, endsWithin)
	defer cancel()
	fds := []unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}} //nolint:gosec // a descriptor is small
	for {
		n, err := unix.Poll(fds, int(lookEvery.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return err
		case ctx.Err() != nil:
			return fmt.Errorf("it still runs after SIGKILL: %w", ctx.Err())
		}
	}
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
		if !pause(ctx, lookEvery) {
			return fmt.Errorf("QEMU still runs: %w", ctx.Err())
		}
	}
}

// pause waits for d, and reports whether ctx is still active.
func pause(ctx context.Context, d time.Duration) bool {
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-timer.Done()
	return ctx.Err() == nil
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
		cwd, err := os.Readlink(procPath(pid, "cwd"))
		return err == nil && (cwd == here || cwd == here+" (deleted)") && hasUUID(pid, uid)
	}
	for _, pid := range processes() {
		if !isStray(pid) {
			continue
		}
		d.Log.Info("Machine ended: its directory, or the run lock in it, was removed", "uid", uid, "pid", pid)
		group := groupOfStray(pid, uid)
		if err := killProcess(ctx, pid, isStray); err != nil {
			return fmt.Errorf("killing the stray QEMU %d of %s: %w", pid, uid, err)
		}
		d.dropGroup(ctx, group)
	}
	return nil
}
