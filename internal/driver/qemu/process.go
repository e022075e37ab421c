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
	// endsWithin is how long a QEMU that was killed may take to be gone.
	endsWithin = 5 * time.Second
	// lookEvery is the time from one look at a process to the next.
	lookEvery = 5 * time.Millisecond
	// logTail is how much of QEMU's log an error has, and outputTail how much the
	// end of a run.
	logTail, outputTail = 500, 1 << 10
)

// The run lock is a lock on an open file, which QEMU inherits and does not know
// of. The kernel frees it when the last process that has it ends, so it tells
// without doubt whether a server runs, and whoever starts one has it first.
var wholeFile = unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}

// running tells whether somebody holds the run lock.
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

// claimRun takes the run lock for a process that is to be started.
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

// spawn starts QEMU in a session of its own; ended tells how that ended. It gets
// neither the controller's environment nor any of its files but those given.
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
		_ = cmd.Wait() // which its state tells too
		over <- cmd.ProcessState.String()
	}()
	return over, h.dir.ReplaceFleeting(h.file(pidFile), []byte(strconv.Itoa(cmd.Process.Pid)+"\n"))
}

// endsFirst has the kernel, where memory runs out, end a guest before the controller
// that looks after all of them. A process may always make itself, and those of its
// user, the likelier choice.
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

// pid finds the server's QEMU: by the pid file where that is right, else among
// all processes. Zero means that there is none.
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

// isOurs : a QEMU works in its server's directory, wherever that was moved, and
// has the UID on its command line.
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

// accelOf is what a machine runs under.
func (d *Driver) accelOf(s server) string { return cmp.Or(s.Accelerator, d.findAccel(s)) }

// findAccel finds out what a machine runs under that an older version started, and
// that says so on its command line alone. A run keeps it.
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

// killProcess makes sure, by a handle on the process, that the one which was
// checked is the one that gets the signal, and waits until it is gone.
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

// untilEnded waits for a process by its handle, which can be read from once
// none of its threads runs any more.
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

// untilOff waits until nobody holds the run lock.
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

// pause waits; it tells whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-timer.Done()
	return ctx.Err() == nil
}

// killStrays ends machines of a UID whose directory was removed under them, or the run
// lock in it, as by who restores a backup while they run. The caller knows that no QEMU
// has the lock.
func (d *Driver) killStrays(ctx context.Context, uid types.UID) error {
	// The kernel tells a path without symbolic links.
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
