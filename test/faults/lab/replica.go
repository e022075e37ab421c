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
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/history"
)

// requestTimeout ends requests of the lab that are not answered.
const requestTimeout = time.Minute

// leaseName is the name of every world's Lease.
const leaseName = "drover-controller"

// Recovery says who goes on after a crash.
type Recovery string

// The recoveries.
const (
	// ByRestart starts the same replica again.
	ByRestart Recovery = "restart"
	// ByStandby has another replica running, whose caches are warm.
	ByStandby Recovery = "standby"
)

// Plan says which processes run in a world.
type Plan struct {
	Engine Engine
	// Programs are those of the first process, the second and so on; after the last, the
	// last. Empty means the lab's.
	Programs []string
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
	world *World
	plan  Plan
	ctx   context.Context // until Stop
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu       sync.Mutex
	all      []*process
	failures []string
	broken   []Violation // at the moments of crashes
}

// process is a process of a replica.
type process struct {
	*framework.Process
	info history.Process
	// crashes is set if it is to end at a point, replaced once the test has ended it, and
	// superseded once another one leads while it is halted, so that it ends by itself.
	crashes, replaced, superseded bool
	// crashed is set once it has ended in that way.
	crashed bool
}

// StartReplicas starts the processes of a plan.
func (w *World) StartReplicas(p Plan) (*Replicas, error) {
	r := &Replicas{world: w, plan: p}
	r.ctx, r.stop = context.WithCancel(context.Background())
	first, err := r.start()
	if err != nil {
		return nil, err
	}
	if p.Recovery == ByStandby {
		err := r.waitLeading(first)
		if err == nil {
			_, err = r.start()
		}
		if err != nil {
			r.Stop()
			return nil, err
		}
	}
	return r, nil
}

// waitLeading waits until a process leads, or has ended.
func (r *Replicas) waitLeading(p *process) error {
	return assert.Poll(r.ctx, "the first replica leads", func() error {
		if p.HasEnded() || p.hasLed() {
			return nil
		}
		return errors.New(p.Output())
	})
}

func (p *process) hasLed() bool { return strings.Contains(p.Output(), "Became leader") }

// CheckLed returns an error unless a process has led, by its number from 0 on, or one after it.
func (r *Replicas) CheckLed(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.all[min(n, len(r.all)):] {
		if p.hasLed() {
			return nil
		}
	}
	return fmt.Errorf("of %d processes none has led from %d on", len(r.all), n)
}

// LearnFile is where a process records its points, by its number from 0 on.
func (w *World) LearnFile(n int) string { return filepath.Join(w.Dir, fmt.Sprintf("points-%d", n)) }

// start starts the next process.
func (r *Replicas) start() (*process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.isDone() {
		return nil, errors.New("the world has ended")
	}
	n := len(r.all)
	args, err := r.args(n)
	if err != nil {
		return nil, err
	}
	p := &process{crashes: n < len(r.plan.Crashes) && r.plan.Crashes[n] != "", info: history.Process{Replica: r.replicaName(n), From: time.Now()}}
	if p.Process, err = framework.StartProcess(r.program(n), args, r.environment(n)); err != nil {
		return nil, err
	}
	p.info.PID = p.PID()
	r.all = append(r.all, p)
	r.ended.Go(func() { r.supervise(p) })
	return p, nil
}

func (r *Replicas) replicaName(n int) string {
	if r.plan.Recovery == ByStandby {
		return fmt.Sprintf("replica-%d", n)
	}
	return "replica-0"
}

func (r *Replicas) program(n int) string {
	if len(r.plan.Programs) == 0 {
		return r.world.Program
	}
	return r.plan.Programs[min(n, len(r.plan.Programs)-1)]
}

func (r *Replicas) args(n int) ([]string, error) {
	args, err := r.world.Args(r.plan.Engine, n)
	args = append(args, "--usage-period=1h", "--metrics-bind-address=0")
	if r.program(n) != r.world.Previous { // which may not have the flag
		args = append(args, r.world.RecordDecisions(n))
	}
	return args, err
}

// Args are the flags of a process in this world, by its number from 0 on. Later flags win.
func (w *World) Args(e Engine, process int) ([]string, error) {
	kubeconfig, err := w.kubeconfigFor(w, process)
	return append(e.Args(w), "--kubeconfig="+kubeconfig, "--lease-lock-namespace="+w.System,
		"--orphan-grace=1s", "--health-probe-bind-address=0", "-v=1",
		// No run waits for an expiry, and on a busy machine a process must not lose its Lease.
		"--leader-elect-lease-duration=5m", "--leader-elect-renew-deadline=4m"), err
}

func (r *Replicas) environment(n int) []string {
	env := slices.Concat(r.world.Environment, r.plan.Engine.Environment(r.world), []string{"POD_NAME=" + r.replicaName(n)})
	if n < len(r.plan.Crashes) && r.plan.Crashes[n] != "" {
		env = append(env, "DROVER_CRASHPOINT="+r.plan.Crashes[n])
	}
	if r.plan.Learn {
		env = append(env, "DROVER_CRASHPOINT_LEARN="+r.world.LearnFile(n))
	}
	return env
}

// supervise waits for the end of a process and has another one go on.
func (r *Replicas) supervise(p *process) {
	err := p.Wait(time.Hour)
	r.mu.Lock()
	p.info.To = time.Now()
	p.crashed = p.endedByKill(err)
	if !r.isDone() && !p.crashed && !p.superseded {
		r.failures = append(r.failures, fmt.Sprintf("%s ended: %v: %s", p.info.Replica, err, tail(p.Output())))
	}
	running := 0
	for _, other := range r.all {
		if !other.HasEnded() {
			running++
		}
	}
	r.mu.Unlock()
	if r.isDone() {
		return
	}
	// The API server may be away.
	err = assert.Poll(r.ctx, "the API answers after a crash", func() error { return errors.Join(r.judgeCrash(), r.clearLease(p.info.Replica)) })
	if err != nil && !r.isDone() {
		r.fail(err)
	}
	if running == 0 {
		if _, err := r.start(); err != nil && !r.isDone() {
			r.fail(err)
		}
	}
}

func (r *Replicas) isDone() bool { return r.ctx.Err() != nil }

func (r *Replicas) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, err.Error())
}

// endedByKill reports whether a process that was to crash has ended as kill -9 ends it.
func (p *process) endedByKill(err error) bool {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || !p.crashes && !p.replaced {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// ClearLease takes the Lease from the first replica, whose processes are dead.
func (r *Replicas) ClearLease() error { return r.clearLease(r.replicaName(0)) }

// clearLease takes the Lease from a process that is dead, so that no run waits for its
// expiry.
func (r *Replicas) clearLease(replica string) error {
	ctx, cancel := context.WithTimeout(context.Background(), requestTimeout) // the replicas may be stopped
	defer cancel()
	leases := r.world.Kube.CoordinationV1().Leases(r.world.System)
	return framework.RetryOnConflict(func() error {
		lease, err := leases.Get(ctx, leaseName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case lease.Spec.HolderIdentity == nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, replica+"_"):
			return nil
		}
		*lease.Spec.HolderIdentity = ""
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// Replace ends the first process as a crash does, unless it has ended, so that the next one
// goes on.
func (r *Replicas) Replace() error {
	r.mu.Lock()
	p := r.all[0]
	if p.HasEnded() {
		r.mu.Unlock()
		return nil
	}
	p.replaced = true
	r.mu.Unlock()
	return p.Kill()
}

// Supersede halts the first process and has another one lead. It lets the first go on when
// meanwhile returns; that one does not know yet that it has lost the Lease, or at all if it is
// isolated then.
func (r *Replicas) Supersede(meanwhile func() error) error {
	r.mu.Lock()
	p := r.all[0]
	p.superseded = true
	r.mu.Unlock()
	if err := syscall.Kill(p.PID(), syscall.SIGSTOP); err != nil {
		return err
	}
	err := r.ClearLease()
	if err == nil {
		err = assert.Poll(r.ctx, "another replica leads", func() error { return r.CheckLed(1) })
	}
	return errors.Join(err, meanwhile(), syscall.Kill(p.PID(), syscall.SIGCONT))
}

// Stop kills all processes.
func (r *Replicas) Stop() {
	r.mu.Lock()
	r.stop()
	for _, p := range r.all {
		if !p.HasEnded() {
			_ = p.Kill()
		}
	}
	r.mu.Unlock()
	r.ended.Wait()
}

// Crashed returns how many processes have ended at their points.
func (r *Replicas) Crashed() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, p := range r.all {
		if p.crashes && p.crashed && !p.replaced {
			n++
		}
	}
	return n
}

// Processes returns all processes so far.
func (r *Replicas) Processes() []history.Process {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []history.Process
	for _, p := range r.all {
		all = append(all, p.info)
	}
	return all
}

// Output returns what all processes have printed.
func (r *Replicas) Output() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all strings.Builder
	for n, p := range r.all {
		fmt.Fprintf(&all, "=== process %d, %s, %d\n%s", n, p.info.Replica, p.info.PID, p.Output())
	}
	return all.String()
}

// judgeCrash checks what must hold even while no process runs: each server has a
// VirtualMachine, which has the finalizer.
func (r *Replicas) judgeCrash() error {
	ctx, cancel := context.WithTimeout(r.ctx, requestTimeout)
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

// Failures returns why processes ended that no point had ended.
func (r *Replicas) Failures() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.failures...)
}

func tail(text string) string { return text[max(0, len(text)-2000):] }
