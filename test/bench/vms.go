// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

const (
	// usersAtOnce is how many requests users send at a time.
	usersAtOnce = 16
	// callTimeout bounds one request of a benchmark.
	callTimeout = 30 * time.Second
	// timeoutPerObject and minTimeout bound operations on many objects.
	timeoutPerObject = time.Second
	minTimeout       = 2 * time.Minute
)

// VMs creates, changes and deletes the VMs of a namespace, as users do.
type VMs struct {
	typed.VirtualMachineInterface
	// AtOnce is how many requests are sent at a time.
	AtOnce int
	// New returns a VM object with a name.
	New func(name string) *api.VirtualMachine
}

// vmsIn returns the VMs of a namespace.
func (e *Environment) vmsIn(namespace string) *VMs {
	return &VMs{e.VMsIn(namespace), usersAtOnce, func(name string) *api.VirtualMachine {
		return framework.NewVM(name).Namespace(namespace).Obj()
	}}
}

// VMName returns the name of the n-th VM.
func VMName(n int) string { return fmt.Sprintf("vm-%05d", n) }

// WatchVMs lists and watches VMs.
func WatchVMs(v typed.VirtualMachineInterface) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return v.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return v.Watch(ctx, o)
		},
	}
}

// CreateOne creates a VM.
func (v *VMs) CreateOne(ctx context.Context, name string, opts metav1.CreateOptions) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := v.Create(ctx, v.New(name), opts)
	return err
}

// CreateNth creates the n-th VM.
func (v *VMs) CreateNth(ctx context.Context, n int) error {
	return v.CreateOne(ctx, VMName(n), metav1.CreateOptions{})
}

// DeleteNth deletes the n-th VM.
func (v *VMs) DeleteNth(ctx context.Context, n int) error {
	return v.Delete(ctx, VMName(n), metav1.DeleteOptions{})
}

// CreateMany creates VMs, and returns how long it took until all were Active.
func (v *VMs) CreateMany(ctx context.Context, count int) (time.Duration, error) {
	return v.EachUntil(ctx, count, IsActive, (*VMs).CreateNth)
}

// CreateSettled creates VMs, and waits until the usage of each is in its status, after which
// nothing changes.
func (v *VMs) CreateSettled(ctx context.Context, count int) error {
	took, err := v.EachUntil(ctx, count, func(e watch.EventType, vm *api.VirtualMachine) bool {
		return IsActive(e, vm) && vm.Status.Server != nil && vm.Status.Server.Usage != nil
	}, (*VMs).CreateNth)
	Logf("%d VMs have settled after %s", count, took.Round(time.Millisecond))
	return err
}

// DeleteMany deletes the VMs of CreateMany, and returns how long it took until all were gone.
func (v *VMs) DeleteMany(ctx context.Context, count int) (time.Duration, error) {
	return v.EachUntil(ctx, count, IsGone[*api.VirtualMachine], (*VMs).DeleteNth)
}

// NewOne creates a VM, calls quiet and deletes the VM. It returns how long the VM took until it was
// Active, and until it was gone.
func (v *VMs) NewOne(ctx context.Context, name string, quiet func(context.Context) error) (active, gone time.Duration, err error) {
	if active, err = WaitForAll(ctx, WatchVMs(v), 1, IsActive, func(ctx context.Context) error {
		return v.CreateOne(ctx, name, metav1.CreateOptions{})
	}); err != nil {
		return 0, 0, err
	}
	if err := quiet(ctx); err != nil {
		return 0, 0, err
	}
	gone, err = WaitForAll(ctx, WatchVMs(v), 1, IsGone[*api.VirtualMachine], func(ctx context.Context) error {
		return v.Delete(ctx, name, metav1.DeleteOptions{})
	})
	return active, gone, err
}

// Step is an action on the n-th VM.
type Step func(v *VMs, ctx context.Context, n int) error

// Each runs a step for each VM, several at a time.
func (v *VMs) Each(ctx context.Context, count int, do Step) error {
	ctx, cancel := WithTimeout(ctx, count)
	defer cancel()
	return ForEach(ctx, count, v.AtOnce, func(ctx context.Context, n int) error { return do(v, ctx, n) })
}

// EachUntil runs a step for each VM, and returns how long it took until all match.
func (v *VMs) EachUntil(ctx context.Context, count int, match Match[*api.VirtualMachine], do Step) (time.Duration, error) {
	return WaitForAll(ctx, WatchVMs(v), count, match, func(ctx context.Context) error { return v.Each(ctx, count, do) })
}

// Match reports whether an event of a watch shows the wanted state.
type Match[T any] func(watch.EventType, T) bool

// IsActive matches VMs that run.
func IsActive(_ watch.EventType, vm *api.VirtualMachine) bool {
	return vm.Status.Phase == api.PhaseActive
}

// IsGone matches objects that were deleted.
func IsGone[T any](e watch.EventType, _ T) bool { return e == watch.Deleted }

// ForEach calls do for 0 to count-1, several at a time.
func ForEach(ctx context.Context, count, parallel int, do func(ctx context.Context, n int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for n := range count {
		group.Go(func() error { return do(ctx, n) })
	}
	return group.Wait()
}

// WithTimeout returns a context with a timeout for an operation on count objects.
func WithTimeout(ctx context.Context, count int) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, max(minTimeout, time.Duration(count)*timeoutPerObject), errors.New("not done in time"))
}

// WaitForAll calls do, and waits until a watch has shown count different objects that match. It
// returns how long it took.
func WaitForAll[T interface {
	runtime.Object
	metav1.Object
}](ctx context.Context, of *cache.ListWatch, count int, match Match[T], do func(context.Context) error) (took time.Duration, err error) {
	ctx, cancel := WithTimeout(ctx, count)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	w, err := watchFrom(ctx, of)
	if err != nil {
		return 0, err
	}
	defer w.Stop()
	begin := time.Now()
	group.Go(func() error { return do(ctx) })
	group.Go(func() error {
		seen := sets.New[string]()
		for seen.Len() < count {
			select {
			case <-ctx.Done():
				return fmt.Errorf("%d of %d objects: %w", seen.Len(), count, context.Cause(ctx))
			case e := <-w.ResultChan():
				object, ok := e.Object.(T)
				if !ok {
					return fmt.Errorf("the watch ended with %d of %d objects: %v", seen.Len(), count, e.Object)
				}
				if match(e.Type, object) {
					seen.Insert(object.GetName())
				}
			}
		}
		took = time.Since(begin)
		return nil
	})
	err = group.Wait()
	return took, err
}
