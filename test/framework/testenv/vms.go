// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// CreateVM creates a VM and returns what the API server answered.
func (env *Environment) CreateVM(t testing.TB, b *framework.VMBuilder) *api.VirtualMachine {
	t.Helper()
	vm := b.Obj()
	if vm.Namespace == metav1.NamespaceDefault {
		vm.Namespace = env.Namespace
	}
	made, err := env.VMsIn(vm.Namespace).Create(t.Context(), vm, metav1.CreateOptions{})
	assert.NoError(t, err)
	return made
}

// CreateActiveVM creates a VM and waits until it is Active.
func (env *Environment) CreateActiveVM(t testing.TB, b *framework.VMBuilder) *api.VirtualMachine {
	t.Helper()
	return env.WaitForVM(t, env.CreateVM(t, b), framework.IsActive)
}

// GetVM reads a VM. It returns nil if there is no VM with the same name and UID.
func (env *Environment) GetVM(t testing.TB, vm *api.VirtualMachine) *api.VirtualMachine {
	t.Helper()
	now, err := env.VMsIn(vm.Namespace).Get(context.WithoutCancel(t.Context()), vm.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != vm.UID:
		return nil
	case err != nil:
		t.Fatal(err)
	}
	return now
}

// UpdateVM changes a VM as a user does and returns it as written.
func (env *Environment) UpdateVM(t testing.TB, vm *api.VirtualMachine, change func(*api.VirtualMachine)) *api.VirtualMachine {
	t.Helper()
	written, err := env.VMsIn(vm.Namespace).Change(t.Context(), vm.Name, change)
	assert.NoError(t, err)
	return written
}

// DeleteVM requests a VM's deletion and does not wait for it.
func (env *Environment) DeleteVM(t testing.TB, vm *api.VirtualMachine) {
	t.Helper()
	assert.NoError(t, env.VMsIn(vm.Namespace).Remove(t.Context(), vm.Name))
}

// WaitForVM waits until a VM passes all checks and returns it.
func (env *Environment) WaitForVM(t testing.TB, vm *api.VirtualMachine, checks ...framework.VMCheck) (now *api.VirtualMachine) {
	t.Helper()
	assert.Eventually(t, vm.Namespace+"/"+vm.Name, func(t testing.TB) (err error) {
		now, err = env.getChecked(t, vm, checks)
		return err
	})
	return now
}

// CheckVM requires that a VM passes all checks now, and returns it.
func (env *Environment) CheckVM(t testing.TB, vm *api.VirtualMachine, checks ...framework.VMCheck) (now *api.VirtualMachine) {
	t.Helper()
	assert.Check(t, vm.Namespace+"/"+vm.Name, func(t testing.TB) (err error) {
		now, err = env.getChecked(t, vm, checks)
		return err
	})
	return now
}

func (env *Environment) getChecked(t testing.TB, vm *api.VirtualMachine, checks []framework.VMCheck) (*api.VirtualMachine, error) {
	t.Helper()
	now := env.GetVM(t, vm)
	if now == nil {
		return nil, errors.New("it does not exist")
	}
	return now, checkAll(now, checks)
}

func checkAll(vm *api.VirtualMachine, checks []framework.VMCheck) error {
	for _, check := range checks {
		if err := check(vm); err != nil {
			return fmt.Errorf("%w; its status is %s", err, framework.FormatStatus(vm))
		}
	}
	return nil
}

// WaitForDeletion waits until a VM is gone and returns how long that took.
func (env *Environment) WaitForDeletion(t testing.TB, vm *api.VirtualMachine) time.Duration {
	t.Helper()
	return assert.Eventually(t, vm.Namespace+"/"+vm.Name+" is gone", func(t testing.TB) error { return env.checkGone(t, vm) })
}

// CheckDeletion requires that a VM is gone now.
func (env *Environment) CheckDeletion(t testing.TB, vm *api.VirtualMachine) {
	t.Helper()
	assert.Check(t, vm.Namespace+"/"+vm.Name+" is gone", func(t testing.TB) error { return env.checkGone(t, vm) })
}

func (env *Environment) checkGone(t testing.TB, vm *api.VirtualMachine) error {
	t.Helper()
	if now := env.GetVM(t, vm); now != nil {
		return fmt.Errorf("finalizers %v; its status is %s", now.Finalizers, framework.FormatStatus(now))
	}
	return nil
}

// ListEvents returns the events about a VM, or all events if vm is nil.
func (env *Environment) ListEvents(t testing.TB, vm *api.VirtualMachine) []eventsv1.Event {
	t.Helper()
	namespaces := []string{metav1.NamespaceAll}
	if env.Namespace != metav1.NamespaceDefault {
		namespaces = append(namespaces, metav1.NamespaceDefault) // events about the cluster itself, shared by all virtual ones
	}
	var all []eventsv1.Event
	for _, ns := range namespaces {
		list, err := env.KubeClient.EventsV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		assert.NoError(t, err)
		for _, e := range list.Items {
			if vm == nil || e.Regarding.UID == vm.UID {
				all = append(all, e)
			}
		}
	}
	return all
}

// WaitForEvent waits for an event about a VM, or about any object if vm is nil.
func (env *Environment) WaitForEvent(t testing.TB, vm *api.VirtualMachine, reason string) eventsv1.Event {
	t.Helper()
	var found eventsv1.Event
	assert.Eventually(t, "an event of reason "+reason, func(t testing.TB) error {
		var had []string
		for _, e := range env.ListEvents(t, vm) {
			if e.Reason == reason {
				found = e
				return nil
			}
			had = append(had, e.Reason)
		}
		return fmt.Errorf("there are %v", had)
	})
	return found
}

// VMHistory has all versions of a VM since RecordHistory was called.
type VMHistory struct {
	mu       sync.Mutex
	versions []*api.VirtualMachine
	err      error
}

// RecordHistory follows a VM from the given version on.
func (env *Environment) RecordHistory(t testing.TB, vm *api.VirtualMachine) *VMHistory {
	t.Helper()
	h := &VMHistory{versions: []*api.VirtualMachine{vm}}
	changes, err := env.WatchVMs(t.Context(), vm.Namespace, "metadata.name="+vm.Name, vm.ResourceVersion)
	assert.NoError(t, err)
	go func() {
		defer changes.Stop()
		for change := range changes.ResultChan() {
			next, ok := change.Object.(*api.VirtualMachine)
			h.mu.Lock()
			if ok {
				h.versions = append(h.versions, next)
			} else {
				h.err = apierrors.FromObject(change.Object)
			}
			h.mu.Unlock()
		}
	}()
	return h
}

// WatchVMs watches the VMs of a namespace that match a field selector, from a resourceVersion on, or from
// now on if version is empty. When the API server closes the watch, WatchVMs continues it with another.
func (env *Environment) WatchVMs(ctx context.Context, ns, selector, version string) (watch.Interface, error) {
	vms := env.VMsIn(ns)
	if version == "" {
		now, err := vms.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		version = now.ResourceVersion
	}
	return watchtools.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return vms.Watch(ctx, options)
		},
	})
}

// WaitForVersion waits until the history has reached the version of vm, and returns the versions up to it.
func (h *VMHistory) WaitForVersion(t testing.TB, vm *api.VirtualMachine) []*api.VirtualMachine {
	t.Helper()
	return h.WaitFor(t, func(version *api.VirtualMachine) error {
		return assert.ErrorUnless(version.ResourceVersion == vm.ResourceVersion, "it is at %s, not %s", version.ResourceVersion, vm.ResourceVersion)
	})
}

// WaitFor waits until the history has a version that passes all checks, and returns the versions up to it.
func (h *VMHistory) WaitFor(t testing.TB, checks ...framework.VMCheck) (all []*api.VirtualMachine) {
	t.Helper()
	assert.Eventually(t, "the watch brings a version", func(testing.TB) (err error) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for n, version := range h.versions {
			if err = checkAll(version, checks); err == nil {
				all = slices.Clone(h.versions[:n+1])
				return nil
			}
		}
		return errors.Join(err, h.err)
	})
	return all
}

// WaitForServers waits until a VM has want servers, counting containers and fake
// servers.
func (env *Environment) WaitForServers(t testing.TB, vm *api.VirtualMachine, want int) {
	t.Helper()
	assert.Eventually(t, "servers of "+vm.Namespace+"/"+vm.Name, func(t testing.TB) error { return env.countServers(t, vm, want) })
}

// CheckServers requires that a VM has want servers now.
func (env *Environment) CheckServers(t testing.TB, vm *api.VirtualMachine, want int) {
	t.Helper()
	assert.Check(t, "servers of "+vm.Namespace+"/"+vm.Name, func(t testing.TB) error { return env.countServers(t, vm, want) })
}

func (env *Environment) countServers(t testing.TB, vm *api.VirtualMachine, want int) error {
	t.Helper()
	n := len(ListContainers(t, vm.UID))
	if env.ReadFakeServer(t, vm.UID) != nil {
		n++
	}
	return assert.ErrorUnless(n == want, "there are %d, want %d", n, want)
}
