// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
)

// inits are entrypoints that only work as the first process, as podman has them.
var inits = []string{"/sbin/init", "/usr/sbin/init", "/usr/local/sbin/init"}

// isInit reports whether a program is an init such as systemd, by its name alone.
func isInit(program string) bool {
	return slices.Contains(inits, program) || path.Base(program) == "systemd"
}

// besideName is the name of the child that serves the host. systemd leaves programs whose name
// begins with "@" alone when it ends all others.
const besideName = "@drover-guest"

// Descriptors of that child, in this order from 3 on.
const (
	fdConfig = 3 + iota
	fdResult
	fdLog
	fdOutput
	fdAgent
	fdData // not there where the machine keeps nothing
)

// stopInit is the stop signal of an image that names none: systemd powers off at it.
const stopInit = "SIGRTMIN+4"

// handOver makes the entrypoint the first process. It returns only if that fails.
func (m *machine) handOver(c process.Command) error {
	if c.User.UID != 0 {
		return fmt.Errorf("%s is an init and user is %q: an init has to run as root", c.Path, m.config.User)
	}
	output, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	if err := m.startBeside(output); err != nil {
		return fmt.Errorf("start the agent: %w", err)
	}
	if err := m.report(config.Result{Kind: config.KindStarted, Handover: true}); err != nil {
		return err
	}
	if err := unix.Chdir(c.Dir); err != nil {
		return err
	}
	for _, fd := range []int{1, 2} {
		if err := unix.Dup3(int(theirs.Fd()), fd, 0); err != nil {
			return err
		}
	}
	return &process.Error{Path: c.Path, Err: syscall.Exec(c.Path, c.Args, c.Env)} //nolint:gosec // it is what the machine is for
}

// startBeside starts the child that serves the host.
func (m *machine) startBeside(output *os.File) error {
	text, err := json.Marshal(m.config)
	if err != nil {
		return err
	}
	fd, err := unix.MemfdCreate("config", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	memory := os.NewFile(uintptr(fd), "config")
	if _, err := memory.WriteAt(text, 0); err != nil {
		return err
	}
	files := []uintptr{0, 1, 2, memory.Fd(), m.result.Fd(), m.log.Fd(), output.Fd(), m.agent.Fd()}
	if data, ok := m.root.Fd(); ok {
		files = append(files, data)
	}
	_, err = syscall.ForkExec("/proc/self/exe", []string{besideName}, &syscall.ProcAttr{Files: files, Sys: &syscall.SysProcAttr{Setsid: true}}) //nolint:gosec // this program
	return errors.Join(err, memory.Close())
}

// serveBeside is the child. The end of the machine is the init's.
func (m *machine) serveBeside(ctx context.Context) error {
	if len(os.Args) != 1 || os.Args[0] != besideName {
		return errors.New("this program is the first process of a machine")
	}
	for fd := fdConfig; fd <= fdAgent; fd++ { // the commands of the agent get none of them
		unix.CloseOnExec(fd)
	}
	text, err := io.ReadAll(io.NewSectionReader(os.NewFile(fdConfig, "config"), 0, config.MaxBytes+1))
	if err != nil {
		return err
	}
	if m.config, err = config.Decode(text); err != nil {
		return err
	}
	m.result, m.log = os.NewFile(fdResult, "result"), os.NewFile(fdLog, "log")
	if m.agent, err = system.NewPort(fdAgent); err != nil {
		return err
	}
	if m.root, err = system.RootOf(fdData, m.config.Disks.Data != ""); err != nil {
		return err
	}
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0o600); err != nil {
		warn(err)
	}
	warn(system.WatchPowerButton(m.press))
	go m.copyOutput(os.NewFile(fdOutput, "output"))
	go m.serveAgent(m.base(), m.agent)
	return m.stopInit(ctx)
}

// stopInit sends the stop signal to the first process at each press of the power button.
func (m *machine) stopInit(ctx context.Context) error {
	name := m.config.StopSignal
	if name == "" {
		name = stopInit
	}
	signal, err := config.ParseSignal(name)
	if err != nil {
		return err
	}
	for {
		select {
		case <-m.pressed:
			warn(syscall.Kill(1, syscall.Signal(signal)))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
