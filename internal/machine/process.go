// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// startWithin bounds the time from the start of QEMU to its first answer.
	startWithin = 20 * time.Second
	// failureTail is how many bytes of QEMU's log a StartError quotes.
	failureTail = 500
)

// Start starts QEMU with the guest halted, and waits until QEMU answers. It fails with a
// StartError if QEMU ends before. If QEMU does not answer in time, Start returns without an
// error, and QEMU keeps running. QEMU inherits the run lock, and opens no path by itself.
// onStarted is called once the process runs, before it answers. ended receives the exit status
// if this program still runs then.
func (m Machine) Start(ctx context.Context, program *Program, c launch.MachineConfig, files *launch.Files, runLock *os.File, onStarted func()) (ended <-chan string, err error) {
	endpoints, closeAll, err := m.openEndpoints(runLock)
	if err == nil {
		ended, err = m.startProcess(ctx, program, c, endpoints, files)
	}
	closeAll()
	if err != nil {
		return nil, errorf(ErrNotStarted, "starting %s: %w", program.Name, err)
	}
	onStarted()
	ctx, cancel := context.WithTimeout(ctx, startWithin)
	defer cancel()
	for {
		select {
		case how := <-ended:
			output := cmp.Or(m.LastOutput(failureTail), "it printed nothing, and ended with "+how)
			return nil, &StartError{Output: output}
		default:
		}
		if _, err := m.Status(ctx); err == nil || !proc.Pause(ctx, proc.PollEvery) {
			return ended, nil
		}
	}
}

// startProcess starts a confined QEMU. ended receives the exit status.
func (m Machine) startProcess(ctx context.Context, program *Program, c launch.MachineConfig, endpoints launch.Endpoints, files *launch.Files) (ended <-chan string, err error) {
	policy, err := program.confinement.Find(ctx, program.Log, program.Name)
	if err != nil {
		return nil, err
	}
	tmp, remove, err := m.Staging.Temp()
	if err != nil {
		return nil, err
	}
	defer remove()
	log, err := os.OpenFile(m.File(LogFile), os.O_CREATE|os.O_TRUNC|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	invocation := launch.Invocation{Program: program.Name, Policy: policy, Users: program.Users, Dir: m.Path, Temp: tmp, Output: log}
	point := crashpoint.Begin("start QEMU", m.Mark)
	qemu, err := launch.Start(ctx, c, invocation, endpoints, files)
	point.End()
	if err != nil {
		return nil, err
	}
	status := make(chan string, 1)
	go func() {
		_ = proc.Wait(qemu.Cmd) // ProcessState has the error too
		status <- qemu.ProcessState.String()
	}()
	return status, m.recordStarted(qemu)
}

// StartError means that QEMU ended before it answered. It wraps ErrNoMemory, ErrDiskChanged or
// ErrNotStarted.
type StartError struct {
	// Output is the end of QEMU's output. It is the exit status if QEMU printed nothing.
	Output string
}

// Error texts of a QEMU that does not start.
var (
	saysNoMemory    = regexp.MustCompile(`(?i)cannot (set up guest|allocate) memory`)
	saysDiskChanged = regexp.MustCompile(`(?i)could not open|image is|failed to get .* lock`)
)

// Unwrap returns the kind of the error.
func (e *StartError) Unwrap() error {
	switch {
	case saysNoMemory.MatchString(e.Output):
		return ErrNoMemory
	case saysDiskChanged.MatchString(e.Output):
		return ErrDiskChanged
	}
	return ErrNotStarted
}

func (e *StartError) Error() string {
	if e.Unwrap() == ErrNoMemory { //nolint:errorlint // the kind itself
		return "QEMU got no memory: " + e.Output
	}
	return "QEMU did not start: " + e.Output
}

// PID returns the process ID of the machine's QEMU, 0 if it does not run. It tries StartedFile,
// then PIDFile, which may be out of date, and then all processes.
func (m Machine) PID() int {
	if pid := m.findOwnProcess(); pid != 0 {
		return pid
	}
	if content, _, err := atomicfile.Read(m.File(PIDFile), maxFileSize); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(content))); err == nil && m.IsOwnProcess(pid) {
			return pid
		}
	}
	for _, pid := range proc.IDs() {
		if m.IsOwnProcess(pid) {
			return pid
		}
	}
	return 0
}

// IsOwnProcess reports whether a process is the machine's QEMU. Either StartedFile names the
// process, or it works in the machine's directory and has the mark.
func (m Machine) IsOwnProcess(pid int) bool {
	if pid != 0 && pid == m.findOwnProcess() {
		return true
	}
	here, err := os.Stat(m.Path)
	if err != nil {
		return false
	}
	there, err := os.Stat(proc.Path(pid, "cwd"))
	return err == nil && os.SameFile(here, there) && m.isMarked(pid)
}

// isMarked reports whether a process has the machine's mark on its command line. Earlier versions of Drover passed the
// mark as the UUID, which drover-machine still does.
func (m Machine) isMarked(pid int) bool {
	return proc.HasOption(pid, "-name", launch.NameOf(m.Mark)) || proc.HasOption(pid, "-uuid", m.Mark)
}

// Kill ends the machine's QEMU at once and waits until it is gone.
func (m Machine) Kill(ctx context.Context) error {
	found := m.PID()
	if err := proc.Kill(ctx, found, m.IsOwnProcess); err != nil {
		return fmt.Errorf("killing the QEMU of %s: %w", m.Mark, err)
	}
	err := m.WaitStopped(ctx, proc.KillWithin)
	if found == 0 && errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("killing the QEMU of %s: its process cannot be found, and may run as another user than Drover, or in another container: %w", m.Mark, err)
	}
	return err
}

// WaitStopped waits until no process holds the run lock.
func (m Machine) WaitStopped(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		isRunning, err := m.IsRunning()
		if err != nil || !isRunning {
			return err
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return fmt.Errorf("QEMU still runs: %w", ctx.Err())
		}
	}
}

// KillStrays kills QEMUs of the machine that run without the run lock: the process in StartedFile,
// and processes with the mark whose directory or lock file was replaced, such as by restoring a
// backup. The caller knows that no QEMU holds the lock. m.Path must be free of symbolic links.
// onFound is called before a process is killed, and onKilled after.
func (m Machine) KillStrays(ctx context.Context, onFound func(pid int) (onKilled func())) error {
	lastStarted := m.findOwnProcess()
	isStray := func(pid int) bool {
		if pid == lastStarted {
			return pid == m.findOwnProcess()
		}
		cwd, removed, err := workingDir(pid)
		return err == nil && (cwd == m.Path || removed) && m.isMarked(pid)
	}
	for _, pid := range proc.IDs() {
		if !isStray(pid) {
			continue
		}
		onKilled := onFound(pid)
		if err := proc.Kill(ctx, pid, isStray); err != nil {
			return fmt.Errorf("killing the stray QEMU %d of %s: %w", pid, m.Mark, err)
		}
		onKilled()
	}
	return nil
}

// FindElsewhere returns a QEMU with the machine's mark that works in another existing directory:
// the machine's directory was moved, and a backup put in its place. pid is 0 if there is none.
func (m Machine) FindElsewhere() (pid int, dir string) {
	for _, pid := range proc.IDs() {
		cwd, removed, err := workingDir(pid)
		if err == nil && !removed && filepath.Base(cwd) == filepath.Base(m.Path) && m.isMarked(pid) && !m.IsOwnProcess(pid) {
			return pid, cwd
		}
	}
	return 0, ""
}

// workingDir returns the working directory of a process, and whether that directory was removed. It
// fails if another user owns the directory: that user could forge the command line of a QEMU.
func workingDir(pid int) (dir string, removed bool, err error) {
	link := proc.Path(pid, "cwd")
	var info unix.Stat_t
	if err := unix.Stat(link, &info); err != nil {
		return "", false, err
	}
	if int(info.Uid) != os.Geteuid() {
		return "", false, fmt.Errorf("the working directory of process %d belongs to user %d", pid, info.Uid)
	}
	dir, err = os.Readlink(link)
	return dir, info.Nlink == 0 && strings.HasSuffix(dir, " (deleted)"), err
}
