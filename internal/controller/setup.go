// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/controller/filesync"
	"cloudnative.tw/drover/internal/controller/probe"
	"cloudnative.tw/drover/internal/controller/queue"
	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/controller/vmclient"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// unassigned names the controller for VirtualMachines whose driver does not run
// here.
const unassigned = "none"

// routineAfter is the delay before a new leader reconciles VMs that need nothing.
// Reconciling thousands of VMs takes all CPUs for a while, and unfinished work
// comes first.
const routineAfter = time.Second

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
	// Decisions records the decisions. A nil Recorder records nothing.
	Decisions *recorder.Recorder
	// NewQueue creates the work queue of a controller. If nil, queue.New creates it.
	NewQueue func(controller string, limiter workqueue.TypedRateLimiter[reconcile.Request]) queue.Queue
}

// Setup adds one controller per driver to the manager. Each has a separate work queue
// and workers, so that a slow engine delays only the VMs on it. One more controller
// reports VMs whose driver does not run here. Setup returns the reconcilers in the
// order of the inventories.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) ([]*Reconciler, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &api.VirtualMachine{}, queue.PriorityIndex, queue.IndexPriority); err != nil {
		return nil, fmt.Errorf("index the VirtualMachines: %w", err)
	}
	var all []*Reconciler
	names := make([]string, len(o.Inventories))
	for n, inv := range o.Inventories {
		names[n] = inv.Name
	}
	for _, inv := range append(slices.Clone(o.Inventories), nil) {
		r := &Reconciler{
			Client: vmclient.New(mgr.GetClient(), mgr.GetAPIReader()), Recorder: o.Recorder,
			Clock: o.Clock, Drivers: names, Inventory: inv, Inventories: o.Inventories, Epoch: o.Epoch, MayAct: o.MayAct,
			Decisions: o.Decisions,
		}
		if inv != nil {
			r.Driver = inv.Name
			all = append(all, r)
		}
		if err := r.addController(mgr, o); err != nil {
			return nil, fmt.Errorf("set up the controller of driver %q: %w", r.Driver, err)
		}
	}
	return all, nil
}

func (r *Reconciler) addController(mgr ctrl.Manager, o Options) error {
	name, threads := r.Driver, o.Threads
	if name == "" {
		name, threads = unassigned, 1
	}
	newQueue := o.NewQueue
	if newQueue == nil {
		newQueue = queue.New(threads, r.Clock)
	}
	c, err := controller.New("virtualmachine-"+name, mgr, controller.Options{
		Reconciler: r, MaxConcurrentReconciles: threads, EnableWarmup: new(true),
		SkipNameValidation: new(true), NewQueue: newQueue,
		RateLimiter: queue.NewRateLimiter(),
	})
	if err != nil {
		return err
	}
	if err := c.Watch(source.Kind(mgr.GetCache(), &api.VirtualMachine{}, r.eventHandler())); err != nil {
		return err
	}
	takeOver := func(ctx context.Context, q queue.Queue) error {
		go r.takeOver(ctx, q, mgr.Elected())
		return nil
	}
	if err := c.Watch(source.Func(takeOver)); err != nil || r.Inventory == nil {
		return err
	}
	return c.Watch(source.Func(r.followInventory))
}

// eventHandler returns a handler that enqueues a VirtualMachine when anyone but this
// process has changed it.
func (r *Reconciler) eventHandler() handler.TypedEventHandler[*api.VirtualMachine, reconcile.Request] {
	return handler.TypedFuncs[*api.VirtualMachine, reconcile.Request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*api.VirtualMachine], q queue.Queue) {
			r.enqueueObject(q, e.Object, queue.CreatePriority(e))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*api.VirtualMachine], q queue.Queue) {
			isForeign := r.Client.IsForeign(e.ObjectOld, e.ObjectNew)
			if priority, ok := queue.UpdatePriority(e.ObjectOld, e.ObjectNew); ok {
				r.enqueueObject(q, e.ObjectNew, priority)
			} else if isForeign {
				r.enqueueObject(q, e.ObjectNew, queue.PriorityRoutine)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*api.VirtualMachine], q queue.Queue) {
			if r.Inventory != nil && e.Object.Spec.DeletionPolicy == api.DeletionRetain {
				r.Inventory.NoteRetained(e.Object.UID)
			}
			r.enqueueObject(q, e.Object, queue.PriorityRoutine)
		},
	}
}

// enqueueObject adds a VirtualMachine of this driver to the queue. A standby's queue
// is empty: takeOver fills it after the election.
func (r *Reconciler) enqueueObject(q queue.Queue, vm *api.VirtualMachine, priority int) {
	if policy.DriverOf(vm, r.Drivers) == r.Driver && !r.isStandby() {
		queue.Add(q, facttimes.KeyOf(vm), priority)
	}
}

// followInventory enqueues a VirtualMachine when its server has changed. If the change does
// not name a VirtualMachine, it enqueues all VMs of the driver. At most one scan of the
// cache runs at a time, and one more scan covers all changes that are reported meanwhile.
func (r *Reconciler) followInventory(ctx context.Context, q queue.Queue) error {
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
	prober, _ := driver.As[driver.Prober](r.Inventory.Driver)
	r.probes = probe.New(ctx, r.Clock, prober, func(key types.NamespacedName) { queue.Add(q, key, queue.PriorityEngine) })
	if writer, ok := driver.As[driver.FileWriter](r.Inventory.Driver); ok {
		r.files = (&filesync.Syncer{
			Clock: r.Clock, Live: r.Client.Live, Driver: writer, MayAct: r.MayAct,
			Requeue: func(key types.NamespacedName) { queue.Add(q, key, queue.PriorityEngine) },
		}).Start(ctx)
	}
	r.Inventory.Subscribe(func(c inventory.Change) {
		switch {
		case r.isStandby():
		case c.All, c.VM.Name == "" && !c.Routine:
			select {
			case scan <- struct{}{}:
			default: // a scan that has not begun covers this change too
			}
		case c.Routine:
			queue.Add(q, c.VM, queue.PriorityRoutine)
		default:
			queue.Add(q, c.VM, queue.PriorityEngine)
		}
	})
	return nil
}

// enqueueAll enqueues every VirtualMachine of the driver. VMs whose server differs from
// the status have a higher priority.
func (r *Reconciler) enqueueAll(ctx context.Context, q queue.Queue) {
	for _, vm := range r.listCached(ctx) {
		priority := queue.PriorityRoutine
		if observed := r.observeServer(vm); observed.Answer != inventory.Unknown && !translate.IsAsReported(vm, observed) {
			priority = queue.PriorityEngine
		}
		queue.Add(q, facttimes.KeyOf(vm), priority)
	}
}

// listCached returns the VirtualMachines of the driver in the cache that match the options.
// The caller must not change them.
func (r *Reconciler) listCached(ctx context.Context, options ...client.ListOption) []*api.VirtualMachine {
	var all api.VirtualMachineList
	if err := r.Client.List(ctx, &all, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List the VirtualMachines in the cache", "driver", r.Driver)
		return nil
	}
	vms := make([]*api.VirtualMachine, 0, len(all.Items))
	for n := range all.Items {
		if vm := &all.Items[n]; policy.DriverOf(vm, r.Drivers) == r.Driver {
			vms = append(vms, vm)
		}
	}
	return vms
}

// isStandby reports whether this process does not lead yet.
func (r *Reconciler) isStandby() bool { return r.Epoch() == 0 }

// takeOver fills the queue once this process is elected: with unfinished work at once, by
// priority, and with all other VMs a little later. A standby need not enqueue anything, since
// its caches are complete when it is elected.
func (r *Reconciler) takeOver(ctx context.Context, q queue.Queue, elected <-chan struct{}) {
	select {
	case <-elected:
	case <-ctx.Done():
		return
	}
	r.enqueueUnfinished(ctx, q)
	select {
	case <-r.Clock.After(routineAfter):
		r.enqueueAll(ctx, q)
	case <-ctx.Done():
	}
}

// enqueueUnfinished enqueues unfinished work, beginning with the work that users wait for.
// The order matters: enqueueing thousands of VMs takes many milliseconds.
func (r *Reconciler) enqueueUnfinished(ctx context.Context, q queue.Queue) {
	for _, priority := range []int{queue.PriorityDeletion, queue.PriorityUser, queue.PriorityEngine} {
		for _, vm := range r.listCached(ctx, client.MatchingFields{queue.PriorityIndex: strconv.Itoa(priority)}) {
			queue.Add(q, facttimes.KeyOf(vm), priority)
		}
	}
	ctrl.Log.V(1).Info("Took over", "driver", r.Driver, "unfinished", q.Len())
}
