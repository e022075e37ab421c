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

// requestTimeout ends requests of the lab that are not answered.
const requestTimeout = time.Minute

// Recovery says who goes on after a crash.
type Recovery string

// The recoveries after a crash.
const (
	// ByRestart starts the same replica again.
	ByRestart Recovery = "restart"
	// ByStandby has another replica running, whose caches are warm.
	ByStandby Recovery = "standby"
)

// Plan says which processes run in a world.
type Plan struct {
	Engine Engine
	// Crashes are the points at which the first process ends, the second and so on.
	Crashes []string
	// Learn has every process record its points.
	Learn    bool
	Recovery Recovery
	// Unprotected is set if users remove finalizers.
	Unprotected bool
}

// Replicas keeps one process leading in a world, and with ByStandby another one beside it.
type Replicas struct {
	*fleet.Fleet
	world *World
	plan  Plan

	mu sync.Mutex
	// superseded is a process that was halted until another one led, so that it ends by itself.
	superseded *fleet.Process
	broken     []Violation // at the moments of crashes
}

// firstReplica is the name of the replica that leads first.
const firstReplica = "replica-0"

// StartReplicas starts the processes of a plan.
func (w *World) StartReplicas(p Plan) (*Replicas, error) {
	r := &Replicas{world: w, plan: p}
	r.Fleet = fleet.New(0, r.command, r.goOn)
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

// CheckLed returns an error unless a process has led, by its number from 0 on, or one after it.
func (r *Replicas) CheckLed(n int) error {
	all := r.All()
	if slices.ContainsFunc(all[min(n, len(all)):], (*fleet.Process).HasLed) {
		return nil
	}
	return fmt.Errorf("of %d processes none has led from %d on", len(all), n)
}

// LearnFile is where a process records its points, by its number from 0 on.
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

// crash returns the point at which a process ends, or nothing.
func (p Plan) crash(process int) string {
	if process < len(p.Crashes) {
		return p.Crashes[process]
	}
	return ""
}

// Args are the flags of a process in this world, by its number from 0 on. Later flags win.
func (w *World) Args(e Engine, process int) ([]string, error) {
	kubeconfig, err := w.kubeconfigFor(w, process)
	return append(e.Args(w), "--kubeconfig="+kubeconfig, "--lease-lock-namespace="+w.System,
		"--orphan-grace=1s", "--health-probe-bind-address=0", "-v=1",
		// No run waits for an expiry, and on a busy machine a process must not lose its Lease.
		"--leader-elect-lease-duration=5m", "--leader-elect-renew-deadline=4m"), err
}

// goOn judges a world in which a process has ended, and reports whether there is none besides.
func (r *Replicas) goOn(p *fleet.Process) bool {
	r.mu.Lock()
	isSuperseded := p == r.superseded
	r.mu.Unlock()
	if !isSuperseded && !r.isEndedAsPlanned(p) {
		r.Fail(fmt.Sprintf("%s ended: %v: %s", p.Replica, p.Wait(context.Background()), tail(p.Output())))
	}
	isLast := len(r.Running()) == 0
	err := assert.Poll(r.Context(), "the API answers after a crash", func() error { // it may be away
		return errors.Join(r.judgeCrash(), r.world.Lease().TakeFrom(p.Replica))
	})
	if err != nil {
		r.Fail(err.Error())
	}
	return isLast
}

// isEndedAsPlanned reports whether a process that was to crash, or was replaced, has ended as kill -9
// ends it.
func (r *Replicas) isEndedAsPlanned(p *fleet.Process) bool {
	exit, ok := errors.AsType[*exec.ExitError](p.Wait(context.Background()))
	if !ok || r.plan.crash(p.Number) == "" && p.EndedBy() != syscall.SIGKILL {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// ClearLease takes the Lease from the first replica, whose processes are dead.
func (r *Replicas) ClearLease() error { return r.world.Lease().TakeFrom(firstReplica) }

// Replace ends the first process as a crash does, unless it has ended, so that the next one
// goes on.
func (r *Replicas) Replace() error {
	p := r.All()[0]
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	_ = p.Wait(context.Background())
	return nil
}

// Supersede halts the first process and has another one lead. It lets the first go on when
// meanwhile returns; that one does not know yet that it has lost the Lease, or at all if it is
// isolated then.
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

// Crashed returns how many processes have ended at their points.
func (r *Replicas) Crashed() int {
	n := 0
	for _, p := range r.All() {
		if r.plan.crash(p.Number) != "" && p.EndedBy() == 0 && p.HasEnded() && r.isEndedAsPlanned(p) {
			n++
		}
	}
	return n
}

// judgeCrash checks what must hold even while no process runs: each server has a
// VirtualMachine, which has the finalizer.
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
			return nil // the engine may be away
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

// BrokenAtCrashes returns what did not hold when processes had ended.
func (r *Replicas) BrokenAtCrashes() []Violation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Violation(nil), r.broken...)
}

func tail(text string) string { return text[max(0, len(text)-2000):] }
