// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// unassigned names the controller for VirtualMachines whose driver does not run
// here.
const unassigned = "none"

// An object whose write failed is retried after 5 ms, doubling to 10 s.
const (
	firstAPIRetry = 5 * time.Millisecond
	lastAPIRetry  = 10 * time.Second
)

// Priorities in a work queue.
const (
	PriorityDeletion = 20
	PriorityUser     = 10
	PriorityEngine   = 0
	PriorityRoutine  = handler.LowPriority
)

// Options are the settings of all per-driver controllers.
type Options struct {
	// Inventories has one inventory per driver, the default driver first.
	Inventories []*inventory.Inventory
	// Threads is the number of workers per driver.
	Threads  int
	Clock    clock.WithTicker
	Recorder events.EventRecorder
	Epoch    func() uint64
	MayAct   func() error
}

// Setup adds one controller per driver to the manager. Each has its own work queue
// and workers, so that a slow engine delays only its own VMs. One more controller
// reports VMs whose driver does not run here. Setup returns the reconcilers in the
// order of the inventories.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) ([]*Reconciler, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &api.VirtualMachine{}, PriorityIndex, IndexPriority); err != nil {
		return nil, fmt.Errorf("index the VirtualMachines: %w", err)
	}
	var lanes []*Reconciler
	names := make([]string, len(o.Inventories))
	for n, inv := range o.Inventories {
		names[n] = inv.Name
	}
	for _, inv := range append(slices.Clone(o.Inventories), nil) {
		r := &Reconciler{
			Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Recorder: o.Recorder,
			Clock: o.Clock, Drivers: names, Inventory: inv, All: o.Inventories, Epoch: o.Epoch, MayAct: o.MayAct,
		}
		if inv != nil {
			r.Driver = inv.Name
			lanes = append(lanes, r)
		}
		if err := r.addController(mgr, o.Threads); err != nil {
			return nil, fmt.Errorf("set up the lane of driver %q: %w", r.Driver, err)
		}
	}
	return lanes, nil
}

func (r *Reconciler) addController(mgr ctrl.Manager, threads int) error {
	name := r.Driver
	if name == "" {
		name, threads = unassigned, 1
	}
	c, err := controller.New("virtualmachine-"+name, mgr, controller.Options{
		Reconciler: r, MaxConcurrentReconciles: threads, EnableWarmup: new(true),
		SkipNameValidation: new(true), NewQueue: New(mgr.GetLogger()),
		// For API errors only: backoff for engines is in decide.
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstAPIRetry, lastAPIRetry),
	})
	if err != nil {
		return err
	}
	if err := c.Watch(source.Kind(mgr.GetCache(), &api.VirtualMachine{}, r.eventHandler())); err != nil {
		return err
	}
	takeOver := func(ctx context.Context, q Queue) error {
		go r.takeOver(ctx, q, mgr.Elected())
		return nil
	}
	if err := c.Watch(source.Func(takeOver)); err != nil || r.Inventory == nil {
		return err
	}
	return c.Watch(source.Func(r.followInventory))
}

type Queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// eventHandler returns a handler that enqueues a VirtualMachine when a user has changed
// it. Drover's own writes enqueue nothing.
func (r *Reconciler) eventHandler() handler.TypedEventHandler[*api.VirtualMachine, reconcile.Request] {
	return handler.TypedFuncs[*api.VirtualMachine, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*api.VirtualMachine], q Queue) {
			r.enqueueObject(q, e.Object, CreatePriority(e))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*api.VirtualMachine], q Queue) {
			r.writes.dropOutdated(e.ObjectNew)
			if priority, ok := UpdatePriority(e.ObjectOld, e.ObjectNew); ok {
				r.enqueueObject(q, e.ObjectNew, priority)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*api.VirtualMachine], q Queue) {
			r.enqueueObject(q, e.Object, PriorityRoutine)
		},
	}
}

// enqueueObject adds a VirtualMachine of this driver to the queue. A standby's queue
// stays empty: takeOver fills it after the election.
func (r *Reconciler) enqueueObject(q Queue, vm *api.VirtualMachine, priority int) {
	if DriverOf(vm, r.Drivers) == r.Driver && !r.isStandby() {
		Add(q, keyOf(vm), priority)
	}
}

func CreatePriority(e event.TypedCreateEvent[*api.VirtualMachine]) int {
	if e.IsInInitialList {
		return PriorityOf(e.Object)
	}
	return max(PriorityOf(e.Object), PriorityUser)
}

// UpdatePriority reports whether a change of the object must be reconciled, and at
// which priority.
func UpdatePriority(old, vm *api.VirtualMachine) (priority int, ok bool) {
	switch {
	case old.DeletionTimestamp == nil && vm.DeletionTimestamp != nil, old.UID != vm.UID:
		return PriorityDeletion, true
	case old.Generation != vm.Generation:
		return PriorityUser, true
	case vm.DeletionTimestamp != nil && old.Annotations[api.AnnotationBound] != vm.Annotations[api.AnnotationBound]:
		return PriorityDeletion, true // changed by hand, as DeletionBlocked asks for
	case IsBound(old) && old.Annotations[api.AnnotationBound] != vm.Annotations[api.AnnotationBound]:
		return PriorityUser, true
	case IsBound(old) && !IsBound(vm):
		return PriorityUser, vm.DeletionTimestamp == nil
	}
	return 0, false
}

// followInventory enqueues a VirtualMachine when its server has changed. If the
// change does not name one, it enqueues all VMs of the driver. At most one scan of
// the cache runs at a time, and one more covers all changes reported meanwhile.
func (r *Reconciler) followInventory(ctx context.Context, q Queue) error {
	scan := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-scan:
				r.enqueueAll(ctx, q)
			case <-ctx.Done():
				return
			}
		}
	}()
	asks, _ := driver.As[driver.Prober](r.Inventory.Driver)
	r.probes = &Prober{ctx: ctx, clock: r.Clock, driver: asks, probes: map[types.NamespacedName]*probe{}, wake: func(key types.NamespacedName) {
		Add(q, key, PriorityEngine)
	}}
	r.Inventory.Subscribe(func(c inventory.Change) {
		switch {
		case r.isStandby():
		case c.All, c.VM.Name == "" && !c.Routine:
			select {
			case scan <- struct{}{}:
			default: // a scan that has not begun covers this change too
			}
		case c.Routine:
			Add(q, c.VM, PriorityRoutine)
		default:
			Add(q, c.VM, PriorityEngine)
		}
	})
	return nil
}

// enqueueAll enqueues every VirtualMachine of the driver. Those whose server differs
// from the status get a higher priority.
func (r *Reconciler) enqueueAll(ctx context.Context, q Queue) {
	for _, vm := range r.listCached(ctx) {
		priority := PriorityRoutine
		if seen := r.observeServer(vm); seen.Answer != inventory.Unknown && !IsAsReported(vm.Status.Server, seen) {
			priority = PriorityEngine
		}
		Add(q, keyOf(vm), priority)
	}
}

// listCached returns the VirtualMachines of the driver in the cache, either all or
// those of an index. The caller must not change them.
func (r *Reconciler) listCached(ctx context.Context, of ...client.ListOption) []*api.VirtualMachine {
	var all api.VirtualMachineList
	if err := r.Client.List(ctx, &all, append(of, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the VirtualMachines in the cache", "driver", r.Driver)
		return nil
	}
	vms := make([]*api.VirtualMachine, 0, len(all.Items))
	for n := range all.Items {
		if vm := &all.Items[n]; DriverOf(vm, r.Drivers) == r.Driver {
			vms = append(vms, vm)
		}
	}
	return vms
}

// observeServer returns the inventory's answer about a VirtualMachine's server.
func (r *Reconciler) observeServer(vm *api.VirtualMachine) inventory.Observation {
	if r.Inventory == nil {
		return inventory.Observation{}
	}
	return r.Inventory.Get(vm.UID)
}

func Add(q Queue, key types.NamespacedName, priority int) {
	req := reconcile.Request{NamespacedName: key}
	if pq, ok := q.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		pq.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, req)
		return
	}
	q.Add(req)
}
