// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/framework/users"
)

const (
	// pollPeriod is how soon the end of a process is noticed.
	pollPeriod = 10 * time.Millisecond
	// restartDelay is the time from a process's end to the next one's start.
	restartDelay = 200 * time.Millisecond
)

// replica is a controller that is restarted whenever it ends, as by a kubelet, and
// reaches the API server through a proxy of its own.
type replica struct {
	name   string
	binary string
	args   []string
	proxy  *framework.APIProxy
	user   *syscall.Credential // nil for the test's own

	mu       sync.Mutex
	process  *framework.Process // nil between two processes
	reserved bool               // a fault affects it
	history  []Process
	output   strings.Builder
}

// runUntilDone runs it until ctx ends. It returns an error if the replica cannot be
// started.
func (r *replica) runUntilDone(ctx context.Context) error {
	for ctx.Err() == nil {
		from := time.Now()
		p, err := framework.StartProcessAs(r.user, r.binary, r.args, []string{"POD_NAME=" + r.name, testenv.ControllerEnv + "=1"})
		if err != nil {
			return fmt.Errorf("start %s: %w", r.name, err)
		}
		r.recordStart(p, from)
		stopped := false
		for !p.HasEnded() {
			if ctx.Err() != nil && !stopped {
				stopped = true
				_ = p.Stop() // whether it leads decides how that ends
			}
			time.Sleep(pollPeriod)
		}
		r.recordExit(p)
		users.Sleep(ctx, restartDelay)
	}
	return nil
}

func (r *replica) recordStart(p *framework.Process, from time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	r.history = append(r.history, Process{Replica: r.name, PID: p.PID(), From: from})
}

func (r *replica) recordExit(p *framework.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = nil
	r.history[len(r.history)-1].To = time.Now()
	fmt.Fprintf(&r.output, "=== %s, process %d, ended at %s\n%s", r.name, p.PID(), time.Now().Format(time.StampMilli), p.Output())
}

// hasRunSince reports whether its process runs, and was started before t.
func (r *replica) hasRunSince(t time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.process != nil && r.history[len(r.history)-1].From.Before(t)
}

// allProcesses returns all processes of the replica so far.
func (r *replica) allProcesses() []Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Process(nil), r.history...)
}

// allOutput returns the output of all of them.
func (r *replica) allOutput() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return r.output.String()
	}
	return r.output.String() + r.process.Output()
}

// reserve reserves the replica for a fault: no other fault affects it meanwhile. It
// fails if another one has reserved it, or if the replica does not run.
func (r *replica) reserve() (*framework.Process, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reserved || r.process == nil {
		return nil, false
	}
	r.reserved = true
	return r.process, true
}

func (r *replica) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reserved = false
}

// sendSignal sends a signal to a process unless it has ended.
func sendSignal(p *framework.Process, s syscall.Signal) error {
	if p.HasEnded() {
		return nil
	}
	if err := syscall.Kill(p.PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s to process %d: %w", s, p.PID(), err)
	}
	return nil
}
