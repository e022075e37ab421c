// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fleet runs the replicas of a controller in separate processes. As a kubelet does, it
// starts a replica again when its process has ended.
//
// Start with Fleet. lease.go has the Lease that replicas share.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Command is how a process is started.
type Command struct {
	Program   string
	Args, Env []string
	// User is nil for the user of the test.
	User *syscall.Credential
}

// Fleet runs the replicas of one controller.
type Fleet struct {
	pause       time.Duration
	command     func(replica string, number int) (Command, error)
	onEnd       func(*Process) (restart bool)
	supervisors sync.WaitGroup
	stopped     context.Context
	stop        context.CancelFunc

	mu       sync.Mutex
	all      []*Process
	failures []string
}

// Process is a process of a replica.
type Process struct {
	*framework.Process
	Replica string
	Number  int
	From    time.Time

	mu     sync.Mutex
	to     time.Time
	signal syscall.Signal
}

// New returns a fleet without replicas. The caller must Stop it.
//
// The function command returns how to start the next process of a replica, and gets its number among the
// processes of all replicas. When a process has ended, unless by Stop, onEnd reports whether its replica is to
// be started again, after a pause. If onEnd is nil, the replica is always started again.
func New(pause time.Duration, command func(replica string, number int) (Command, error), onEnd func(*Process) (restart bool)) *Fleet {
	f := &Fleet{pause: pause, command: command, onEnd: onEnd}
	f.stopped, f.stop = context.WithCancel(context.Background())
	return f
}

// Start starts a replica.
func (f *Fleet) Start(replica string) (*Process, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.IsStopped() {
		return nil, errors.New("the fleet has ended")
	}
	p := &Process{Replica: replica, Number: len(f.all), From: time.Now()}
	c, err := f.command(replica, p.Number)
	if err != nil {
		return nil, err
	}
	if p.Process, err = framework.StartProcessAs(c.User, c.Program, c.Args, slices.Concat(c.Env, []string{"POD_NAME=" + replica})); err != nil {
		return nil, fmt.Errorf("start %s: %w", replica, err)
	}
	f.all = append(f.all, p)
	f.supervisors.Go(func() { f.superviseReplica(p) })
	return p, nil
}

// superviseReplica waits for the end of a process, and starts the next one of its replica.
func (f *Fleet) superviseReplica(p *Process) {
	_ = p.Wait(context.Background())
	p.mu.Lock()
	p.to = time.Now()
	p.mu.Unlock()
	if f.IsStopped() || f.onEnd != nil && !f.onEnd(p) {
		return
	}
	framework.Sleep(f.stopped, f.pause)
	if _, err := f.Start(p.Replica); err != nil {
		f.Fail(err.Error())
	}
}

// IsStopped reports whether Stop was called.
func (f *Fleet) IsStopped() bool { return f.stopped.Err() != nil }

// Context returns a context that ends when the fleet is stopped.
func (f *Fleet) Context() context.Context { return f.stopped }

// Stop ends all processes by SIGTERM or SIGKILL, and waits for them.
func (f *Fleet) Stop(signal syscall.Signal) {
	f.mu.Lock()
	f.stop()
	for _, p := range f.all {
		f.supervisors.Go(func() {
			if signal == syscall.SIGKILL {
				_ = p.Kill()
				return
			}
			_ = p.Stop() // a leader and a standby end with different exit codes
		})
	}
	f.mu.Unlock()
	f.supervisors.Wait()
}

// Fail records a failure, unless the fleet is stopped.
func (f *Fleet) Fail(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.IsStopped() {
		f.failures = append(f.failures, text)
	}
}

// Failures returns the texts that Fail has recorded.
func (f *Fleet) Failures() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.failures)
}

// All returns all processes so far, in the order of their numbers.
func (f *Fleet) All() []*Process {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.all)
}

// Running returns the processes that have not ended, by their replicas.
func (f *Fleet) Running() map[string]*Process {
	running := map[string]*Process{}
	for _, p := range f.All() {
		if !p.HasEnded() {
			running[p.Replica] = p
		}
	}
	return running
}

// Processes describes all processes so far.
func (f *Fleet) Processes() []rules.Process {
	var all []rules.Process
	for _, p := range f.All() {
		p.mu.Lock()
		all = append(all, rules.Process{Replica: p.Replica, PID: p.PID(), From: p.From, To: p.to})
		p.mu.Unlock()
	}
	return all
}

// Output returns what all processes have printed since the last Forget.
func (f *Fleet) Output() string {
	var text strings.Builder
	for _, p := range f.All() {
		if printed := p.Output(); printed != "" {
			fmt.Fprintf(&text, "=== process %d, %s, %d\n%s", p.Number, p.Replica, p.PID(), printed)
		}
	}
	return text.String()
}

// Forget drops the output of all processes.
func (f *Fleet) Forget() {
	for _, p := range f.All() {
		_ = p.TakeOutput()
	}
}

// Signal sends a signal to a process, unless it has ended or is nil.
func (p *Process) Signal(s syscall.Signal) error {
	if p == nil || p.HasEnded() {
		return nil
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		p.mu.Lock()
		p.signal = s
		p.mu.Unlock()
	}
	if err := syscall.Kill(p.PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to process %d: %w", s, p.PID(), err)
	}
	return nil
}

// Halt suspends a process for a while, by SIGSTOP and SIGCONT.
func (p *Process) Halt(ctx context.Context, during time.Duration) error {
	err := p.Signal(syscall.SIGSTOP)
	framework.Sleep(ctx, during)
	return errors.Join(err, p.Signal(syscall.SIGCONT))
}

// EndedBy returns the signal that was sent to end the process, or 0.
func (p *Process) EndedBy() syscall.Signal {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signal
}

// HasLed reports whether the process was ever the leader.
func (p *Process) HasLed() bool { return strings.Contains(p.Output(), "Became leader") }
