// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// handoverTimeout bounds a handover. The longest is that of a node without power, whose
// Lease expires after 15 s.
const handoverTimeout = 3 * time.Minute

// Handover is what a fault did, in time since it began.
type Handover struct {
	// Elected is when the Lease names a new leader; 0 if the leader did not change.
	Elected time.Duration
	// Reconciled is when Drover first writes to a VM that was created after the fault.
	Reconciled time.Duration
}

func (h Handover) String() string {
	return fmt.Sprintf("leader after %s, first reconcile after %s", bench.FormatDuration(h.Elected), bench.FormatDuration(h.Reconciled))
}

// MeasureHandover hits the leader by a fault, and follows what happens until Drover has
// taken care of a VM that was created meanwhile.
func (d *Deployment) MeasureHandover(ctx context.Context, f Fault) (Handover, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handoverTimeout, fmt.Errorf("not within %s", handoverTimeout))
	defer cancel()
	leader, err := d.WaitUntilSteady(ctx)
	if err != nil {
		return Handover{}, err
	}
	o := &observer{d: d, old: leader, from: d.leases.Len(), vmFrom: d.probes.Len()}
	o.begin = time.Now()
	undo, err := f.Inject(ctx, d, podOf(leader))
	if err != nil {
		return Handover{}, fmt.Errorf("%s: %w", f.Name, err)
	}
	if err := o.follow(ctx, f.ChangesLeader); err != nil {
		return o.handover, fmt.Errorf("%s of %s: %w", f.Name, leader, err)
	}
	if undo == nil {
		return o.handover, nil
	}
	return o.handover, undo(ctx)
}

// observer follows one handover.
type observer struct {
	d            *Deployment
	old          string
	from, vmFrom int
	begin        time.Time
	handover     Handover
}

func (o *observer) follow(ctx context.Context, changesLeader bool) error {
	o.d.probeCount++
	probe := o.d.newUser(fmt.Sprintf("probe-%d", o.d.probeCount), 0)
	vm := framework.NewVM(probe.Name).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(1).Obj()
	if err := probe.CreateVM(ctx, vm, 1); err != nil {
		return err
	}
	if changesLeader {
		next, err := o.d.leases.Await(ctx, o.from, func(e leaseEvent) bool {
			holder := holderOf(e)
			return holder != "" && holder != o.old
		})
		if err != nil {
			return fmt.Errorf("a new leader: %w", err)
		}
		o.handover.Elected = next.At.Sub(o.begin)
	}
	if err := o.awaitReconcile(ctx, probe.Name); err != nil {
		return err
	}
	if err := probe.WaitUntilApplied(ctx, 1); err != nil {
		return err
	}
	return probe.DeleteVM(ctx)
}

func (o *observer) awaitReconcile(ctx context.Context, name string) error {
	touched, err := o.d.probes.Await(ctx, o.vmFrom, func(e vmEvent) bool {
		return e.Object.Name == name && (len(e.Object.Finalizers) > 0 || e.Object.Status.ObservedGeneration > 0)
	})
	if err != nil {
		return fmt.Errorf("the first write to VM %s: %w", name, err)
	}
	o.handover.Reconciled = touched.At.Sub(o.begin)
	return nil
}

type (
	leaseEvent = bench.Event[*coordinationv1.Lease]
	vmEvent    = bench.Event[*api.VirtualMachine]
)

// holderOf returns who holds the Lease, or nothing.
func holderOf(e leaseEvent) string { return ptr.Deref(e.Object.Spec.HolderIdentity, "") }

// podOf returns the pod of a holder. Drover adds a suffix to the pod's name.
func podOf(holder string) string {
	pod, _, _ := strings.Cut(holder, "_")
	return pod
}
