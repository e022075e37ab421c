// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
)

// handoverTimeout is how long a handover may take in addition to the Lease's duration.
const handoverTimeout = time.Minute

type vmEvent = bench.Event[*api.VirtualMachine]

// handover is one observed change of leader. Times are since the signal.
type handover struct {
	// Renewed is when the old leader last wrote the Lease, in most cases before the
	// signal and thus negative.
	Renewed time.Duration
	// Released is when the old leader released the Lease, or 0 if it did not, for
	// example because it was killed.
	Released time.Duration
	// Elected is when the Lease first names a new leader.
	Elected time.Duration
	// Reconciled is when Drover first writes to the VM.
	Reconciled time.Duration
	// HasLeaderlessVM reports whether the VM was created while no replica led, so that the new
	// leader was the first to write to it.
	HasLeaderlessVM bool
}

// measureHandover ends the leader of a fleet, and observes the handover. If name is set, it also creates a VM of
// this name while there is no leader.
func (b *benchmark) measureHandover(ctx context.Context, f *fleet, sig syscall.Signal, name string) (handover, error) {
	if err := b.waitUntilSteady(ctx); err != nil {
		return handover{}, err
	}
	leader, err := f.waitForLeader()
	if err != nil {
		return handover{}, err
	}
	// Kills should come at any time between two renewals.
	if err := bench.Pause(ctx, rand.N(b.settings.Retry)); err != nil { //nolint:gosec // no secret
		return handover{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.settings.Lease+handoverTimeout, errors.New("not seen in time"))
	defer cancel()
	w := &handoverObserver{b: b, ctx: ctx, old: leader.identity, log: f.log, from: max(f.log.Len()-1, 0), vmFrom: b.vmLog.Len()}
	leader.stopRequested = true
	w.signalled = time.Now()
	if err := syscall.Kill(leader.PID(), sig); err != nil {
		return handover{}, err
	}
	if name != "" {
		err = b.VMs.CreateOne(ctx, name, metav1.CreateOptions{})
	}
	err = errors.Join(err, w.waitForNewLeader())
	if err == nil && name != "" {
		err = w.waitForReconcile(name)
	}
	if err != nil {
		return w.handover, fmt.Errorf("%s of %s: %w; it printed:\n%s", sig, leader.identity, err, leader.Output())
	}
	return w.handover, checkExit(ctx, leader, sig)
}

// waitUntilSteady starts missing replicas, and waits until no work is left.
func (b *benchmark) waitUntilSteady(ctx context.Context) error {
	pids := []int{b.PID()}
	for _, f := range b.fleets {
		if err := f.startMissing(); err != nil {
			return err
		}
		for _, r := range f.replicas {
			pids = append(pids, r.PID())
		}
	}
	return bench.AwaitQuiet(ctx, pids...)
}

// checkExit checks that a leader that was stopped ended cleanly.
func checkExit(ctx context.Context, leader *replica, sig syscall.Signal) error {
	err := leader.Wait(ctx)
	if err != nil && sig != syscall.SIGKILL {
		return fmt.Errorf("%s did not stop cleanly: %w; it printed:\n%s", leader.identity, err, leader.Output())
	}
	return nil
}

// handoverObserver observes one handover.
type handoverObserver struct {
	handover
	b         *benchmark
	ctx       context.Context
	old       string
	log       *bench.Log[*coordinationv1.Lease]
	from      int
	vmFrom    int
	signalled time.Time
	elected   uint64
}

// waitForNewLeader waits for the new leader, and records the release, if there is one.
func (w *handoverObserver) waitForNewLeader() error {
	first, err := w.log.Await(w.ctx, w.from, func(e leaseEvent) bool {
		if holderOf(e) == w.old {
			w.Renewed = e.At.Sub(w.signalled)
		}
		return holderOf(e) != w.old
	})
	if err != nil {
		return fmt.Errorf("a change of the Lease's holder: %w", err)
	}
	if holderOf(first) == "" {
		w.Released = first.At.Sub(w.signalled)
	}
	next, err := w.log.Await(w.ctx, w.from, func(e leaseEvent) bool { return holderOf(e) != w.old && holderOf(e) != "" })
	if err != nil {
		return fmt.Errorf("a new leader: %w", err)
	}
	w.Elected, w.elected = next.At.Sub(w.signalled), next.Version
	return nil
}

// waitForReconcile waits for Drover's first write to the VM, and deletes the VM.
func (w *handoverObserver) waitForReconcile(name string) error {
	created, err := w.b.vmLog.Await(w.ctx, w.vmFrom, func(e vmEvent) bool { return e.Object.Name == name })
	if err != nil {
		return fmt.Errorf("the VM: %w", err)
	}
	reconciled, err := w.b.vmLog.Await(w.ctx, w.vmFrom, func(e vmEvent) bool { return e.Object.Name == name && isReconciled(e.Object) })
	if err != nil {
		return fmt.Errorf("the first write to the VM: %w", err)
	}
	w.Reconciled = reconciled.At.Sub(w.signalled)
	w.HasLeaderlessVM = created.Version < w.elected && w.elected < reconciled.Version
	if err := w.b.VMs.Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err = w.b.vmLog.Await(w.ctx, w.vmFrom, func(e vmEvent) bool { return e.Object.Name == name && e.Type == watch.Deleted })
	if err != nil {
		return fmt.Errorf("the VM's removal: %w", err)
	}
	return nil
}

// isReconciled reports whether Drover has written to a VM.
func isReconciled(vm *api.VirtualMachine) bool {
	return slices.Contains(vm.Finalizers, api.FinalizerServer) || vm.Status.ObservedGeneration > 0
}
