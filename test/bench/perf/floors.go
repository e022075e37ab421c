// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	listers "cloudnative.tw/drover/client/listers/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
)

const (
	// noopWorkers is the number of workers of drover-controller.
	noopWorkers = 16
	// patchTimeout bounds a write.
	patchTimeout = 2 * time.Minute
)

// runCacheFloor runs only a typed informer that drops managedFields.
func runCacheFloor(ctx context.Context, cfg *rest.Config, _ []string) error {
	_, informers, err := bench.NewInformers(cfg)
	if err != nil {
		return err
	}
	informers.Cloudnative().V1alpha1().VirtualMachines().Informer()
	if err := bench.FillCaches(ctx, informers); err != nil {
		return err
	}
	<-ctx.Done()
	informers.Shutdown()
	return nil
}

// noopController writes the finalizer and then the status of every VM once, and removes the
// finalizer when the VM is deleted. No controller that reports its work and cleans up can
// write less.
type noopController struct {
	client versioned.Interface
	lister listers.VirtualMachineLister
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
	status func(*api.VirtualMachine) api.VirtualMachineStatus
}

func runNoopController(status func(*api.VirtualMachine) api.VirtualMachineStatus) bench.Floor {
	return func(ctx context.Context, cfg *rest.Config, _ []string) error {
		n := &noopController{
			status: status, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
		}
		return n.run(ctx, cfg)
	}
}

func (n *noopController) run(ctx context.Context, cfg *rest.Config) error {
	c, informers, err := bench.NewInformers(cfg)
	if err != nil {
		return err
	}
	vms := informers.Cloudnative().V1alpha1().VirtualMachines()
	n.client, n.lister = c, vms.Lister()
	if _, err := vms.Informer().AddEventHandler(n.eventHandler()); err != nil {
		return err
	}
	if err := bench.FillCaches(ctx, informers); err != nil {
		return err
	}
	var workers sync.WaitGroup
	for range noopWorkers {
		workers.Go(func() { n.runWorker(ctx) })
	}
	<-ctx.Done()
	n.queue.ShutDown()
	workers.Wait()
	informers.Shutdown()
	return nil
}

// eventHandler queues new VMs and those that are being deleted, but not after the controller's own writes.
func (n *noopController) eventHandler() cache.ResourceEventHandler {
	add := func(object any) {
		if vm, ok := object.(*api.VirtualMachine); ok {
			n.queue.Add(cache.MetaObjectToName(vm))
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(old, now any) {
			before, ok := old.(*api.VirtualMachine)
			after, okToo := now.(*api.VirtualMachine)
			if ok && okToo && before.DeletionTimestamp == nil && after.DeletionTimestamp != nil {
				add(now)
			}
		},
	}
}

func (n *noopController) runWorker(ctx context.Context) {
	for {
		key, over := n.queue.Get()
		if over {
			return
		}
		if err := n.reconcileVM(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			fmt.Fprintln(os.Stderr, key, err)
			n.queue.AddRateLimited(key)
		} else {
			n.queue.Forget(key)
		}
		n.queue.Done(key)
	}
}

func (n *noopController) reconcileVM(ctx context.Context, key cache.ObjectName) error {
	vm, err := n.lister.VirtualMachines(key.Namespace).Get(key.Name)
	if err != nil {
		return err
	}
	switch {
	case vm.DeletionTimestamp != nil:
		return n.patchVM(ctx, key, map[string]any{"metadata": map[string]any{"finalizers": []string{}}})
	case slices.Contains(vm.Finalizers, api.FinalizerServer):
		return nil
	}
	if err := n.patchVM(ctx, key, map[string]any{"metadata": map[string]any{"finalizers": []string{api.FinalizerServer}}}); err != nil {
		return err
	}
	return n.patchVM(ctx, key, map[string]any{"status": n.status(vm)}, "status")
}

// activeStatus returns the complete status of an Active VM, which every controller for this
// API has to write.
func activeStatus(vm *api.VirtualMachine) api.VirtualMachineStatus {
	now := metav1.NowMicro()
	status := api.VirtualMachineStatus{
		ObservedGeneration: vm.Generation, Phase: api.PhaseActive, Reason: api.ReasonRunning, Driver: "fake",
		Server:    &api.ServerStatus{ID: "fake-" + string(vm.UID)[:18], State: "Running", Generation: vm.Generation},
		Addresses: []string{"10.1.2.3"}, StartTime: &now, LastUpdateTime: &now,
	}
	for _, kind := range []string{api.ConditionReady, api.ConditionRunning, api.ConditionObserved} {
		status.Conditions = append(status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionTrue, Reason: api.ReasonRunning,
			ObservedGeneration: vm.Generation, LastTransitionTime: metav1.NewTime(now.Time),
		})
	}
	return status
}

// bareStatus returns a status with only the phase.
func bareStatus(vm *api.VirtualMachine) api.VirtualMachineStatus {
	return api.VirtualMachineStatus{Phase: api.PhaseActive, ObservedGeneration: vm.Generation}
}

func (n *noopController) patchVM(ctx context.Context, key cache.ObjectName, change map[string]any, sub ...string) error {
	content, err := json.Marshal(change)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patchTimeout)
	defer cancel()
	_, err = n.client.CloudnativeV1alpha1().VirtualMachines(key.Namespace).
		Patch(ctx, key.Name, types.MergePatchType, content, metav1.PatchOptions{}, sub...)
	return err
}
