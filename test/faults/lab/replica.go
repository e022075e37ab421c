// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/fleet"
)

// requestTimeout bounds the lab's requests.
const requestTimeout = time.Minute

// Recovery says which process continues after a crash.
type Recovery string

// Values of Recovery.
const (
	// ByRestart starts the same replica again.
	ByRestart Recovery = "restart"
	// ByStandby has a second replica running, whose caches are filled.
	ByStandby Recovery = "standby"
)

// Plan says which processes run in a world.
type Plan struct {
	Engine Engine
	// Crashes has the crash points of the first process, the second and so on.
	Crashes []string
	// Learn makes every process record the crash points that it passes.
	Learn    bool
	Recovery Recovery
	// Unprotected is set if users remove finalizers, so that checkProtected would fail.
	Unprotected bool
}

// Replicas keeps one process running in a world, and with ByStandby a second one.
type Replicas struct {
	*fleet.Fleet
	world *World
	plan  Plan

	mu sync.Mutex
	// superseded is a process that was halted until another one led. It may end by itself.
	superseded *fleet.Process
	broken     []Violation // at the moments of crashes
}

// firstReplica is the name of the replica that leads first.
const firstReplica = "replica-0"

// StartReplicas starts the processes of a plan.
func (w *World) StartReplicas(p Plan) (*Replicas, error) {
	r := &Replicas{world: w, plan: p}
	r.Fleet = fleet.New(0, r.command, r.handleEnd)
	first, err := r.Start(firstReplica)
	if err == nil && p.Recovery == ByStandby {
		if err = r.waitLeading(first); err == nil {
			_, err = r.Start("replica-1")
		}
	}
	if err != nil {
		r.Stop()
		return nil, err
	}
	return r, nil
}

// waitLeading waits until a process leads, or has ended.
func (r *Replicas) waitLeading(p *fleet.Process) error {
	return assert.Poll(r.Context(), "the first replica leads", func() error {
		if p.HasEnded() || p.HasLed() {
			return nil
		}
		return errors.New(p.Output())
	})
}

// CheckLed returns an error unless process n or a later one has led. The first process is 0.
func (r *Replicas) CheckLed(n int) error {
	all := r.All()
	if slices.ContainsFunc(all[min(n, len(all)):], (*fleet.Process).HasLed) {
		return nil
	}
	return fmt.Errorf("none of the %d processes has led, counted from process %d on", len(all), n)
}

// LearnFile is where process n records its crash points. The first process is 0.
func (w *World) LearnFile(n int) string { return filepath.Join(w.Dir, fmt.Sprintf("points-%d", n)) }

// command returns how a process is started.
func (r *Replicas) command(_ string, n int) (fleet.Command, error) {
	args, err := r.world.Args(r.plan.Engine, n)
	args = append(args, "--usage-period=1h", "--metrics-bind-address=0", r.world.RecordDecisions(n))
	env := slices.Concat(r.world.Variables, r.plan.Engine.Variables(r.world))
	if point := r.plan.crash(n); point != "" {
		env = append(env, "DROVER_CRASHPOINT="+point)
	}
	if r.plan.Learn {
		env = append(env, "DROVER_CRASHPOINT_LEARN="+r.world.LearnFile(n))
	}
	return fleet.Command{Program: r.world.Program, Args: args, Env: env}, err
}

// crash returns the point at which a process crashes, or "".
func (p Plan) crash(process int) string {
	if process < len(p.Crashes) {
		return p.Crashes[process]
	}
	return ""
}

// Args returns the flags of a process in this world. The first process is 0. Later flags override earlier ones.
func (w *World) Args(e Engine, process int) ([]string, error) {
	kubeconfig, err := w.kubeconfigFor(w, process)
	return append(e.Args(w), "--kubeconfig="+kubeconfig, "--lease-lock-namespace="+w.System,
		"--orphan-grace=1s", "--health-probe-bind-address=0", "-v=1",
		// No run waits for an expiry, and on a busy host a process must not lose its Lease.
		"--leader-elect-lease-duration=5m", "--leader-elect-renew-deadline=4m"), err
}

// handleEnd checks the world after the end of a process. The replica is started again if no other process runs.
func (r *Replicas) handleEnd(p *fleet.Process) (again bool) {
	r.mu.Lock()
	isSuperseded := p == r.superseded
	r.mu.Unlock()
	if !isSuperseded && !r.isEndedAsPlanned(p) {
		r.Fail(fmt.Sprintf("%s ended: %v: %s", p.Replica, p.Wait(context.Background()), tail(p.Output())))
	}
	again = len(r.Running()) == 0
	err := assert.Poll(r.Context(), "the API answers after a crash", func() error { // it may be down
		return errors.Join(r.judgeCrash(), r.world.Lease().TakeFrom(p.Replica))
	})
	if err != nil {
		r.Fail(err.Error())
	}
	return again
}

// isEndedAsPlanned reports whether a process has ended by SIGKILL, and had a crash point or was killed
// by the test.
func (r *Replicas) isEndedAsPlanned(p *fleet.Process) bool {
	exit, ok := errors.AsType[*exec.ExitError](p.Wait(context.Background()))
	isPlanned := r.plan.crash(p.Number) != "" || p.EndedBy() == syscall.SIGKILL
	if !ok || !isPlanned {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// ClearLease takes the Lease from the first replica, whose processes are dead or halted.
func (r *Replicas) ClearLease() error { return r.world.Lease().TakeFrom(firstReplica) }

// KillFirst kills the first process, unless it has ended, and waits for its end. Another process
// continues.
func (r *Replicas) KillFirst() error {
	p := r.All()[0]
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_ = p.Wait(context.Background())
	return nil
}

// Supersede halts the first process, waits until another one leads, and calls meanwhile. Then it
// resumes the first process, which does not know yet that it has lost the Lease. If meanwhile has
// isolated the first process, it never finds out.
func (r *Replicas) Supersede(meanwhile func() error) error {
	p := r.All()[0]
	r.mu.Lock()
	r.superseded = p
	r.mu.Unlock()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := r.ClearLease()
	if err == nil {
		err = assert.Poll(r.Context(), "another replica leads", func() error { return r.CheckLed(1) })
	}
	return errors.Join(err, meanwhile(), p.Signal(syscall.SIGCONT))
}

// Stop kills all processes.
func (r *Replicas) Stop() { r.Fleet.Stop(syscall.SIGKILL) }

// Crashed returns how many processes have crashed at their crash points.
func (r *Replicas) Crashed() int {
	n := 0
	for _, p := range r.All() {
		isSignalled := p.EndedBy() != 0 // by the test, not by its crash point
		if r.plan.crash(p.Number) != "" && !isSignalled && p.HasEnded() && r.isEndedAsPlanned(p) {
			n++
		}
	}
	return n
}

// judgeCrash checks what must be true even while no process runs: each server has a
// VirtualMachine with the finalizer.
func (r *Replicas) judgeCrash() error {
	ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
	defer cancel()
	if r.plan.Unprotected {
		return nil
	}
	var broken []Violation
	for range 2 { // a standby may remove a server and its finalizer between the two reads
		seen, err := r.plan.Engine.Inspect(ctx, r.world, nil)
		if err != nil {
			return nil // the engine may be unreachable
		}
		if broken, err = r.world.checkProtected(ctx, seen.Servers); err != nil || len(broken) == 0 {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.broken = append(r.broken, broken...)
	return nil
}

// BrokenAtCrashes returns the violations that judgeCrash has found.
func (r *Replicas) BrokenAtCrashes() []Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Violation(nil), r.broken...)
}

func tail(text string) string { return text[max(0, len(text)-2000):] }
