// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
	"cloudnative.tw/drover/internal/guest/users"
)

// initName is the first argument of this program as process 1 of the image's PID namespace.
const initName = "drover-init"

// Descriptors of that process.
const (
	fdOrder  = 3 // an initOrder, as JSON
	fdFailed = 4 // takes an initFailure, as JSON, and is closed once the process is ready
)

// initOrder tells process 1 of the namespace to become a program, or to stay and reap orphans if there is no program.
type initOrder struct {
	Program *program `json:"program,omitempty"`
}

// program is a process.Command without its files.
type program struct {
	Path string     `json:"path"`
	Args []string   `json:"args"`
	Env  []string   `json:"env"`
	Dir  string     `json:"dir"`
	User users.User `json:"user"`
}

// initFailure says why the process is not ready.
type initFailure struct {
	Message string `json:"message"`
	// Errno is set if the program was not executed.
	Errno syscall.Errno `json:"errno,omitempty"`
}

// initKind describes an init.
type initKind struct {
	// stopSignal powers it off. An empty one means the image's, or SIGTERM.
	stopSignal string
	// printsToConsole is set if it prints to /dev/console in place of its output, if there is one.
	printsToConsole bool
}

// inits are the names of programs that work only, or best, as process 1.
var inits = map[string]initKind{
	"init": {}, "systemd": {stopSignal: "SIGRTMIN+4"}, "runit": {printsToConsole: true}, "runit-init": {printsToConsole: true},
	"openrc-init": {}, "s6-svscan": {}, "tini": {}, "tini-static": {},
	"docker-init": {}, "dumb-init": {}, "catatonit": {},
}

// busyBoxPowerOff is the signal at which the init of BusyBox powers off.
const busyBoxPowerOff = "SIGUSR2"

// findInit reports whether a program is an init, by its name or that of the file to which it leads.
func findInit(file string) (kind initKind, isInit bool) {
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		target = file
	}
	if kind, isInit = inits[path.Base(target)]; isInit {
		return kind, true
	}
	if kind, isInit = inits[path.Base(file)]; isInit && path.Base(target) == "busybox" {
		kind.stopSignal = busyBoxPowerOff
	}
	return kind, isInit
}

// startInit starts process 1 of the namespace, and returns once it is ready: it is the program, or waits for orphans if
// the program is nil. hasTerminal is set if the first file is its terminal.
func (m *machine) startInit(p *program, files [3]*os.File, hasTerminal bool) (*process.Process, error) {
	order, err := memoryFile(initOrder{p})
	if err != nil {
		return nil, err
	}
	failed, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, order.Close())
	}
	started, err := m.table.Start(process.Command{
		Path: "/proc/self/exe", Args: []string{initName}, Env: []string{}, Dir: "/", Files: append(files[:], order, theirs), Terminal: hasTerminal,
	})
	if err = errors.Join(err, order.Close(), theirs.Close()); err != nil {
		return nil, errors.Join(err, failed.Close())
	}
	text, err := io.ReadAll(io.LimitReader(failed, config.MaxBytes))
	if err = errors.Join(err, failed.Close()); err != nil || len(text) == 0 {
		return started, err
	}
	var failure initFailure
	if err := json.Unmarshal(text, &failure); err != nil {
		return nil, fmt.Errorf("process 1 of the image: %w", err)
	}
	if failure.Errno != 0 {
		return nil, &process.Error{Path: p.Path, Err: failure.Errno}
	}
	return nil, errors.New(failure.Message)
}

// memoryFile returns a file in memory with a value as JSON.
func memoryFile(value any) (*os.File, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	fd, err := unix.MemfdCreate("order", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "order")
	if _, err := f.WriteAt(text, 0); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// runInit is process 1 of the namespace. It returns an error if it is not ready.
func runInit() error {
	unix.CloseOnExec(fdOrder)
	unix.CloseOnExec(fdFailed)
	failed := os.NewFile(fdFailed, "failed")
	err := obeyOrder(failed)
	failure := initFailure{Message: err.Error()}
	if executed, ok := errors.AsType[*process.Error](err); ok {
		failure.Errno, _ = errors.AsType[syscall.Errno](executed.Err)
	}
	return errors.Join(err, json.NewEncoder(failed).Encode(failure))
}

// obeyOrder returns only if it fails.
func obeyOrder(ready io.Closer) error {
	text, err := io.ReadAll(io.NewSectionReader(os.NewFile(fdOrder, "order"), 0, 2*config.MaxBytes))
	if err != nil {
		return err
	}
	var order initOrder
	if err := json.Unmarshal(text, &order); err != nil {
		return err
	}
	// The one of the namespace, in place of the one that shows all processes of the machine.
	if err := system.MountProc(); err != nil {
		return err
	}
	if order.Program != nil {
		return order.Program.execute()
	}
	// A process that ignores the ends of its children has them reaped by the kernel.
	signal.Ignore()
	name := os.WriteFile("/proc/self/comm", []byte(initName), 0o600) // which ps prints
	if err := errors.Join(name, os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0o600), ready.Close()); err != nil {
		return err
	}
	for {
		_ = unix.Pause()
	}
}

// execute replaces this process by the program.
func (p *program) execute() error {
	groups := make([]int, len(p.User.Groups))
	for n, group := range p.User.Groups {
		groups[n] = int(group)
	}
	uid, gid := int(p.User.UID), int(p.User.GID)
	// The folder is entered as the user, as syscall.ForkExec does for all other programs.
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(gid, gid, gid), syscall.Setresuid(uid, uid, uid), unix.Chdir(p.Dir)); err != nil {
		return err
	}
	return &process.Error{Path: p.Path, Err: syscall.Exec(p.Path, p.Args, p.Env)} //nolint:gosec // the machine is for it
}
