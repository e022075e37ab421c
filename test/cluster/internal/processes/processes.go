// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package processes runs programs by name and ends them, as often as wanted.
package processes

import (
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"cloudnative.tw/drover/test/cluster/internal/control"
)

// Group of programs. Its methods may be called at the same time.
type Group struct {
	mu      sync.Mutex
	members map[string]*member
}

type member struct {
	path, log string
	args      []string
	cmd       *exec.Cmd
	ended     chan struct{}
}

// Add makes a program known. Its output is appended to the file log.
func (g *Group) Add(name, path, logFile string, args ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.members == nil {
		g.members = map[string]*member{}
	}
	g.members[name] = &member{path: path, log: logFile, args: args}
}

// Start starts a program that does not run.
func (g *Group) Start(name string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.find(name)
	if err != nil {
		return err
	}
	if m.isRunning() {
		return fmt.Errorf("%s is running already", name)
	}
	return m.start(name)
}

// Signal sends a signal to a program that runs. After SIGKILL it waits for the end.
func (g *Group) Signal(name string, sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, err := g.find(name)
	if err != nil {
		return err
	}
	if !m.isRunning() {
		return fmt.Errorf("%s is not running", name)
	}
	if err := m.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", name, err)
	}
	if sig == syscall.SIGKILL {
		<-m.ended
	}
	return nil
}

// Ended is closed when the program that runs now has ended.
func (g *Group) Ended(name string) <-chan struct{} {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.members[name].ended
}

func (g *Group) find(name string) (*member, error) {
	m := g.members[name]
	if m == nil {
		return nil, fmt.Errorf("there is no program %s here", name)
	}
	return m, nil
}

func (m *member) isRunning() bool {
	if m.cmd == nil {
		return false
	}
	select {
	case <-m.ended:
		return false
	default:
		return true
	}
}

func (m *member) start(name string) error {
	output, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }()
	//nolint:noctx // It outlives the call that started it.
	cmd := exec.Command(m.path, m.args...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	m.cmd, m.ended = cmd, ended
	go func() {
		defer close(ended)
		log.Printf("%s has ended: %v", name, cmd.Wait())
	}()
	return nil
}

// signals that can be sent by name.
var signals = map[string]syscall.Signal{
	"kill": syscall.SIGKILL, "term": syscall.SIGTERM, "stop": syscall.SIGSTOP, "cont": syscall.SIGCONT,
}

// Serve lets clients start and signal the programs: POST /processes/NAME/VERB.
func (g *Group) Serve(mux *http.ServeMux) {
	mux.HandleFunc("POST /processes/{name}/{verb}", control.Handler(func(r *http.Request) error {
		name, verb := r.PathValue("name"), strings.ToLower(r.PathValue("verb"))
		if verb == "start" {
			return g.Start(name)
		}
		sig, ok := signals[verb]
		if !ok {
			return fmt.Errorf("there is no verb %s", verb)
		}
		return g.Signal(name, sig)
	}))
}
