// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

// callTimeout bounds one request of a benchmark.
const callTimeout = 30 * time.Second

// CreateNamespace makes a namespace.
func CreateNamespace(ctx context.Context, kube kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
	return err
}

// WatchVMs lists and watches the VMs of a namespace.
func WatchVMs(vms typed.VirtualMachineInterface) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return vms.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return vms.Watch(ctx, o)
		},
	}
}

// CreationTimes is how long it took, from the first creation.
type CreationTimes struct {
	// Created is when the API server has all VMs.
	Created time.Duration `json:"createdNanoseconds"`
	// Active is when all run.
	Active time.Duration `json:"activeNanoseconds"`
	// Settled is when all have reported their usage, after which nothing changes.
	Settled time.Duration `json:"settledNanoseconds"`
}

// CreateAndSettle creates VMs called vm-<n>, several at a time, and waits until all of
// them have settled.
func CreateAndSettle(ctx context.Context, vms typed.VirtualMachineInterface, count, parallel int) (CreationTimes, error) {
	group, ctx := errgroup.WithContext(ctx)
	w, err := watchFrom(ctx, WatchVMs(vms))
	if err != nil {
		return CreationTimes{}, err
	}
	defer w.Stop()
	var times CreationTimes
	begin := time.Now()
	group.Go(func() error {
		defer func() { times.Created = time.Since(begin) }()
		return CreateVMs(ctx, vms, count, parallel)
	})
	group.Go(func() error { return times.recordTimes(ctx, w, count, begin) })
	return times, group.Wait()
}

// CreateVMs creates VMs called vm-<n>, several at a time.
func CreateVMs(ctx context.Context, vms typed.VirtualMachineInterface, count, parallel int) error {
	return ForEach(ctx, count, parallel, func(ctx context.Context, n int) error {
		return CreateVM(ctx, vms, VMName(n))
	})
}

// VMName the n-th VM.
func VMName(n int) string { return fmt.Sprintf("vm-%05d", n) }

// ForEach calls do for 0 to count-1, several at a time.
func ForEach(ctx context.Context, count, parallel int, do func(ctx context.Context, n int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n := range count {
		group.Go(func() error { return do(ctx, n) })
	}
	return group.Wait()
}

// WaitForAll calls do, and waits until a watch has shown that many VMs for which match
// holds, each counted once. It returns how long that took.
func WaitForAll(ctx context.Context, vms typed.VirtualMachineInterface, count int, match func(watch.Event, *api.VirtualMachine) bool, do func(context.Context) error) (time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	w, err := watchFrom(ctx, WatchVMs(vms))
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	begin := time.Now()
	var took time.Duration
	group.Go(func() error { return do(ctx) })
	group.Go(func() error {
		seen := sets.New[string]()
		for seen.Len() < count {
			e, vm, err := nextVM(ctx, w)
			if err != nil {
				return fmt.Errorf("%d of %d VMs: %w", seen.Len(), count, err)
			}
			if match(e, vm) {
				seen.Insert(vm.Name)
			}
		}
		took = time.Since(begin)
		return nil
	})
	return took, group.Wait()
}

// nextVM returns the next event of a watch.
func nextVM(ctx context.Context, w watch.Interface) (watch.Event, *api.VirtualMachine, error) {
	select {
	case <-ctx.Done():
		return watch.Event{}, nil, context.Cause(ctx)
	case e, open := <-w.ResultChan():
		vm, ok := e.Object.(*api.VirtualMachine)
		if !open || !ok {
			return e, nil, fmt.Errorf("the watch of the VMs ended: %v", e.Object)
		}
		return e, vm, nil
	}
}

// CreateVM creates a small VM.
func CreateVM(ctx context.Context, vms typed.VirtualMachineInterface, name string) error {
	return createVM(ctx, vms, name, metav1.CreateOptions{})
}

// DryRunCreate goes through a creation and creates nothing.
func DryRunCreate(ctx context.Context, vms typed.VirtualMachineInterface) error {
	return createVM(ctx, vms, "try", metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

func createVM(ctx context.Context, vms typed.VirtualMachineInterface, name string, opts metav1.CreateOptions) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	vm := framework.NewVM(name).Obj()
	vm.Namespace = ""
	_, err := vms.Create(ctx, vm, opts)
	return err
}

// recordTimes counts the VMs that a watch shows until all have settled.
func (m *CreationTimes) recordTimes(ctx context.Context, w watch.Interface, count int, begin time.Time) error {
	active, settled := sets.New[string](), sets.New[string]()
	for settled.Len() < count {
		_, vm, err := nextVM(ctx, w)
		if err != nil {
			return fmt.Errorf("of %d VMs, %d are Active and %d have settled: %w", count, active.Len(), settled.Len(), err)
		}
		if vm.Status.Phase != api.PhaseActive {
			continue
		}
		if active.Insert(vm.Name); active.Len() == count && m.Active == 0 {
			m.Active = time.Since(begin)
		}
		if vm.Status.Server != nil && vm.Status.Server.Usage != nil {
			settled.Insert(vm.Name)
		}
	}
	m.Settled = time.Since(begin)
	return nil
}
