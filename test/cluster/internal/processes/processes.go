// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package processes starts and kills programs by their names, any number of times.
package processes

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"sync"

	"cloudnative.tw/drover/test/cluster/internal/control"
)

// Group is a group of programs. Its methods may be called concurrently.
type Group struct {
	mu      sync.Mutex
	members map[string]*member
}

type member struct {
	path, log string
	args      []string
	*Process
}

// Process is a program that was started. Nil means that it never was.
type Process struct {
	*exec.Cmd
	// Ended is closed when the program has ended.
	Ended <-chan struct{}
}

// Start starts a program whose output is appended to a file. Its end is reported.
func Start(logFile string, cmd *exec.Cmd, report func(error)) (*Process, error) {
	output, err := os.OpenFile(logFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = output.Close() }()
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		report(cmd.Wait())
	}()
	return &Process{cmd, ended}, nil
}

// IsRunning reports whether the program was started and has not ended.
func (p *Process) IsRunning() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Ended:
		return false
	default:
		return true
	}
}

// Add adds a program to the group. Its output is appended to logFile.
func (g *Group) Add(name, path, logFile string, args ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		g.members = map[string]*member{}
	}
	g.members[name] = &member{path: path, log: logFile, args: args}
}

// Start starts a program, which must not be running.
func (g *Group) Start(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.find(name)
	if err != nil {
		return err
	}
	if m.IsRunning() {
		return fmt.Errorf("%s is running already", name)
	}
	//nolint:noctx // It outlives the call that starts it.
	m.Process, err = Start(m.log, exec.Command(m.path, m.args...), func(end error) { log.Printf("%s has ended: %v", name, end) })
	return err
}

// Kill kills a running program, and waits for its end.
func (g *Group) Kill(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.find(name)
	if err != nil {
		return err
	}
	if !m.IsRunning() {
		return fmt.Errorf("%s is not running", name)
	}
	if err := m.Cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", name, err)
	}
	<-m.Ended
	return nil
}

// Ended returns a channel that is closed when the program's present process has ended.
func (g *Group) Ended(name string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[name].Ended
}

func (g *Group) find(name string) (*member, error) {
	m := g.members[name]
	if m == nil {
		return nil, fmt.Errorf("there is no program %s here", name)
	}
	return m, nil
}

// Serve lets clients start and kill the programs: POST /processes/NAME/VERB.
func (g *Group) Serve(mux *http.ServeMux) {
	for verb, do := range map[string]func(string) error{"start": g.Start, "kill": g.Kill} {
		mux.HandleFunc("POST /processes/{name}/"+verb, control.Handler(func(r *http.Request) error { return do(r.PathValue("name")) }))
	}
}
