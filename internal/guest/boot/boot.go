// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package boot makes a machine of a container image: as the first process it sets Linux up, runs the
// image's entrypoint, serves the host by the agent, and ends the machine with the entrypoint.
//
// Start with Main. machine.setUp has the order of the boot (setup.go), machine.run what happens
// while the entrypoint runs (run.go), and machine.finish the end. The processes of the image have a
// PID namespace, whose process 1 is the entrypoint itself if that is an init such as systemd (init.go).
package boot

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"cloudnative.tw/drover/internal/guest/agent"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/modules"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
	"cloudnative.tw/drover/internal/guest/users"
)

// Main runs a machine until its end. It returns only where that fails, and the kernel panics then.
func Main() {
	if os.Args[0] == initName {
		warn(runInit())
		return
	}
	if path.Base(os.Args[0]) == modules.Program {
		loadModule()
		return
	}
	m := &machine{table: process.NewTable(), pressed: make(chan struct{}, 1)}
	go m.table.Reap()
	result, err := m.boot()
	if err != nil {
		result = failureOf(err)
		warn(err)
	}
	m.finish(result)
}

// loadModule is the kernel's modprobe: its arguments are -q, -- and a name.
func loadModule() {
	if err := modules.Load(path.Dir(os.Args[0]), os.Args[len(os.Args)-1]); err != nil {
		warn(err)
		os.Exit(1)
	}
}

// machine is this machine.
type machine struct {
	config config.Config
	table  *process.Table
	root   *system.Root
	agent  *system.Port
	// result is nil until it is open.
	result *os.File
	// output has the entrypoint's standard output and standard error.
	output [2]output
	gate   gate
	mounts mounts.Set
	input  *agent.Input
	// pressed has a press of the power button.
	pressed chan struct{}
	// restarts is set if the image has asked for another boot.
	restarts bool
}

// boot runs the entrypoint, and returns how it ended.
func (m *machine) boot() (config.Result, error) {
	if err := m.setUp(); err != nil {
		return config.Result{}, err
	}
	command, err := m.command()
	if err != nil {
		return config.Result{}, err
	}
	return m.run(command)
}

// failureOf is the result of a run that did not start.
func failureOf(err error) config.Result {
	r := config.Result{Kind: config.KindFailed, Code: config.CodeFailed, Message: config.Printable(err.Error(), config.MaxMessage)}
	switch {
	case errors.Is(err, process.ErrNotFound):
		r.Code = config.CodeNotFound
	case errors.Is(err, process.ErrNotExecutable):
		r.Code = config.CodeNotExecutable
	}
	return r
}

// warn prints what a person at the console should know.
func warn(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "drover-guest: %s\n", config.Printable(err.Error(), 4*config.MaxMessage))
	}
}

// Waits of the end, each for a host that is slow.
const (
	outputWithin    = 10 * time.Second
	namespaceWithin = 10 * time.Second
	resultWithin    = 10 * time.Second
)

// finish reports the result, leaves the disk in order and ends the machine.
func (m *machine) finish(result config.Result) {
	if !m.restarts {
		within(resultWithin, func() { warn(m.report(result)) })
	}
	if m.root != nil {
		m.root.Sync()
		// Held for ever: its journal is empty, and nothing changes it any more.
		warn(m.root.Freeze())
	}
	if m.restarts {
		warn(system.Restart())
	}
	warn(system.PowerOff())
}

// within waits for a call to return, and goes on without it after a while.
func within(limit time.Duration, call func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		call()
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		warn(errors.New("the host takes nothing"))
	}
}

// lookup returns a user of the image.
func lookup(text string) (users.User, error) {
	passwd, err := system.ReadEtc("passwd")
	if err != nil {
		return users.User{}, err
	}
	group, err := system.ReadEtc("group")
	if err != nil {
		return users.User{}, err
	}
	return users.Lookup(text, passwd, group)
}
