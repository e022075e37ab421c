// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	listers "cloudnative.tw/drover/client/listers/cloudnative/v1alpha1"
)

// noopWorkers are as many as drover-controller has.
const noopWorkers = 16

// noopController writes, for every VM, the finalizer and then the status once,
// and takes the finalizer away when the VM is deleted. No controller that tells
// of its work and cleans up can write less.
type noopController struct {
	client versioned.Interface
	lister listers.VirtualMachineLister
	queue  workqueue.TypedRateLimitingInterface[cache.ObjectName]
}

func noop(ctx context.Context, cfg *rest.Config) error {
	c, err := versioned.NewForConfig(cfg)
	if err != nil {
		return err
	}
	informers := newInformers(c)
	vms := informers.Cloudnative().V1alpha1().VirtualMachines()
	n := &noopController{
		client: c, lister: vms.Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[cache.ObjectName]()),
	}
	if _, err := vms.Informer().AddEventHandler(n.handler()); err != nil {
		return err
	}
	if err := fill(ctx, informers); err != nil {
		return err
	}
	var workers sync.WaitGroup
	for range noopWorkers {
		workers.Go(func() { n.work(ctx) })
	}
	<-ctx.Done()
	n.queue.ShutDown()
	workers.Wait()
	informers.Shutdown()
	return nil
}

// handler queues new VMs and those that are deleted. Its own writes wake
// nothing.
func (n *noopController) handler() cache.ResourceEventHandler {
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

func (n *noopController) work(ctx context.Context) {
	for {
		key, over := n.queue.Get()
		if over {
			return
		}
		if err := n.reconcile(ctx, key); err != nil && !apierrors.IsNotFound(err) {
			fmt.Fprintln(os.Stderr, key, err)
			n.queue.AddRateLimited(key)
		} else {
			n.queue.Forget(key)
		}
		n.queue.Done(key)
	}
}

func (n *noopController) reconcile(ctx context.Context, key cache.ObjectName) error {
	vm, err := n.lister.VirtualMachines(key.Namespace).Get(key.Name)
	if err != nil {
		return err
	}
	switch {
	case vm.DeletionTimestamp != nil:
		return n.patch(ctx, key, map[string]any{"metadata": map[string]any{"finalizers": []string{}}})
	case slices.Contains(vm.Finalizers, api.FinalizerServer):
		return nil
	}
	if err := n.patch(ctx, key, map[string]any{"metadata": map[string]any{"finalizers": []string{api.FinalizerServer}}}); err != nil {
		return err
	}
	return n.patch(ctx, key, map[string]any{"status": map[string]any{
		"phase": api.PhaseActive, "observedGeneration": vm.Generation,
	}}, "status")
}

func (n *noopController) patch(ctx context.Context, key cache.ObjectName, change map[string]any, sub ...string) error {
	content, err := json.Marshal(change)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, atLeast)
	defer cancel()
	_, err = n.client.CloudnativeV1alpha1().VirtualMachines(key.Namespace).
		Patch(ctx, key.Name, types.MergePatchType, content, metav1.PatchOptions{}, sub...)
	return err
}
