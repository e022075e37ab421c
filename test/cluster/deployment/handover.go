// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework/users"
)

// handoverTimeout bounds a handover. The longest is that after a node's loss of power, when the
// Lease expires after 15 s.
const handoverTimeout = 3 * time.Minute

// Handover is the effect of a fault.
type Handover struct {
	// Leaderless is how long no replica led; 0 if the leader did not change. A leader that
	// releases the Lease counts as leading until the Lease last names it, others until the fault.
	Leaderless time.Duration
	// Reconciled is the time from the fault's begin until Drover first writes to a VM that was
	// created after it. A leader that ends cleanly may still do this.
	Reconciled time.Duration
}

// MeasureHandover injects a fault of the leader, and observes the deployment until Drover has
// written to a VM that was created during the fault.
func (d *Deployment) MeasureHandover(ctx context.Context, f Fault) (Handover, error) {
	steady, cancelSteady := withHandoverTimeout(ctx)
	defer cancelSteady()
	leader, err := d.WaitUntilSteady(steady)
	if err != nil {
		return Handover{}, fmt.Errorf("before the fault: %w", err)
	}
	ctx, cancel := withHandoverTimeout(ctx)
	defer cancel()
	o := &observer{d: d, fault: f, old: leader, begin: time.Now()}
	undo := func(context.Context) error { return nil }
	var group errgroup.Group
	group.Go(func() error { // Inject may return only when the fault is over
		again, err := f.Inject(ctx, d, podOf(leader))
		if again != nil {
			undo = again
		}
		return err
	})
	group.Go(func() error { return o.follow(ctx) })
	if err := group.Wait(); err != nil {
		return o.handover, fmt.Errorf("%s of %s: %w", f.Name, leader, err)
	}
	return o.handover, undo(ctx)
}

func withHandoverTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, handoverTimeout, fmt.Errorf("not within %s", handoverTimeout))
}

// observer observes one handover. It polls, because a watch would end when the API server
// is down.
type observer struct {
	d        *Deployment
	fault    Fault
	old      string // holder of the Lease
	begin    time.Time
	led      time.Time // when the Lease last named the old holder
	handover Handover
}

func (o *observer) follow(ctx context.Context) error {
	probe := o.d.newProbe()
	if err := probe.CreateVM(ctx, newVM(probe.Name).Obj(), 1); err != nil {
		return err
	}
	var group errgroup.Group
	if o.fault.ChangesLeader {
		group.Go(func() error { return o.awaitLeader(ctx) })
	}
	group.Go(func() error {
		err := o.poll(ctx, func(ctx context.Context) error { return checkReconciled(ctx, probe) })
		o.handover.Reconciled = time.Since(o.begin)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	if err := probe.WaitUntilApplied(ctx, 1); err != nil {
		return err
	}
	return probe.DeleteVM(ctx)
}

// awaitLeader waits for another leader.
func (o *observer) awaitLeader(ctx context.Context) error {
	o.led = o.begin
	err := o.poll(ctx, o.checkElected)
	o.handover.Leaderless = time.Since(o.led)
	return err
}

func (o *observer) poll(ctx context.Context, check func(context.Context) error) error {
	_, err := bench.Poll(handoverTimeout, func() error {
		attempt, cancel := context.WithTimeout(ctx, users.RequestTimeout)
		defer cancel()
		return check(attempt)
	})
	return err
}

func (o *observer) checkElected(ctx context.Context) error {
	asked := time.Now()
	lease, err := o.d.Kube.CoordinationV1().Leases(namespace).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	holder := holderOf(lease)
	if holder != "" && holder != o.old {
		return nil
	}
	if holder == o.old && o.fault.Releases {
		o.led = asked
	}
	return fmt.Errorf("the Lease names %q, after %q", holder, o.old)
}

func checkReconciled(ctx context.Context, probe *users.User) error {
	vm, err := probe.VMs.Get(ctx, probe.Name, metav1.GetOptions{})
	if err == nil && len(vm.Finalizers) == 0 {
		err = fmt.Errorf("no controller has written to VM %s", probe.Name)
	}
	return err
}

// holderOf returns the holder of a Lease, or "".
func holderOf(lease *coordinationv1.Lease) string { return ptr.Deref(lease.Spec.HolderIdentity, "") }

// podOf returns the name of a holder's pod, without the suffix that Drover adds.
func podOf(holder string) string {
	pod, _, _ := strings.Cut(holder, "_")
	return pod
}
