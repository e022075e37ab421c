// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/vmtest"
)

// Soon is how long a step may take on a slow and busy machine unless a test requires
// less.
const Soon = 2 * time.Minute

func (w *World) in(ns string) typed.VirtualMachineInterface {
	return w.VMs.CloudnativeV1alpha1().VirtualMachines(ns)
}

// Create creates a VM and returns what the API server answered.
func (w *World) Create(t testing.TB, b *vmtest.Builder) *api.VirtualMachine {
	t.Helper()
	vm := b.Obj()
	made, err := w.in(vm.Namespace).Create(t.Context(), vm, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// Active creates a VM and waits until it is Active.
func (w *World) Active(t testing.TB, b *vmtest.Builder) *api.VirtualMachine {
	t.Helper()
	return w.Await(t, w.Create(t, b), Soon, Active)
}

// Get reads a VM; it is nil if there is none of that UID.
func (w *World) Get(t testing.TB, vm *api.VirtualMachine) *api.VirtualMachine {
	t.Helper()
	now, err := w.in(vm.Namespace).Get(context.WithoutCancel(t.Context()), vm.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != vm.UID:
		return nil
	case err != nil:
		t.Fatal(err)
	}
	return now
}

// untilWritten is the backoff for a change while a controller writes too: each of
// its writes may come in between, and client-go's own backoff gives up after the
// fourth.
var untilWritten = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1, Jitter: 1, Steps: 500}

// Edit changes a VM as a user does and returns it as written.
func (w *World) Edit(t testing.TB, vm *api.VirtualMachine, change func(*api.VirtualMachine)) *api.VirtualMachine {
	t.Helper()
	var next *api.VirtualMachine
	err := retry.RetryOnConflict(untilWritten, func() (err error) {
		if next, err = w.in(vm.Namespace).Get(t.Context(), vm.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		change(next)
		next, err = w.in(vm.Namespace).Update(t.Context(), next, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return next
}

// Delete requests a VM's deletion and does not wait for it.
func (w *World) Delete(t testing.TB, vm *api.VirtualMachine) {
	t.Helper()
	err := w.in(vm.Namespace).Delete(t.Context(), vm.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// Check returns nil, or an error that says what is wrong.
type Check func(*api.VirtualMachine) error

// Active requires that the VM runs and is ready, and that its status is about the
// latest spec.
func Active(vm *api.VirtualMachine) error {
	return errors.Join(
		Phase(api.PhaseActive, api.ReasonRunning)(vm),
		Condition(api.ConditionReady, metav1.ConditionTrue)(vm),
	)
}

// Phase requires phase and reason, for the latest spec.
func Phase(phase api.Phase, reason string) Check {
	return func(vm *api.VirtualMachine) error {
		s := &vm.Status
		if s.Phase != phase || s.Reason != reason || s.ObservedGeneration != vm.Generation {
			return fmt.Errorf("phase %q, reason %q, generation %d: want %q, %q, %d", s.Phase, s.Reason, s.ObservedGeneration, phase, reason, vm.Generation)
		}
		return nil
	}
}

// Condition requires a condition of the latest spec; with an empty status it must be
// absent.
func Condition(kind string, status metav1.ConditionStatus) Check {
	return func(vm *api.VirtualMachine) error {
		c := meta.FindStatusCondition(vm.Status.Conditions, kind)
		switch {
		case c == nil && status == "":
			return nil
		case c == nil || c.Status != status || c.ObservedGeneration != vm.Generation:
			return fmt.Errorf("condition %s is %+v: want %q", kind, c, status)
		}
		return nil
	}
}

// Says requires a text in the status's message.
func Says(text string) Check {
	return func(vm *api.VirtualMachine) error {
		if !strings.Contains(vm.Status.Message, text) {
			return fmt.Errorf("message %q: want %q in it", vm.Status.Message, text)
		}
		return nil
	}
}

// HasUsage requires that the server was sampled.
func HasUsage(vm *api.VirtualMachine) error {
	if vm.Status.Server == nil || vm.Status.Server.Usage == nil {
		return errors.New("no usage is told")
	}
	return nil
}

// Await waits until a VM passes all checks and returns it.
func (w *World) Await(t testing.TB, vm *api.VirtualMachine, within time.Duration, checks ...Check) *api.VirtualMachine {
	t.Helper()
	var now *api.VirtualMachine
	vmtest.Eventually(t, within, vm.Namespace+"/"+vm.Name, func() error {
		now = w.Get(t, vm)
		if now == nil {
			return errors.New("it is not there")
		}
		for _, check := range checks {
			if err := check(now); err != nil {
				return fmt.Errorf("%w; its status is %s", err, Show(now))
			}
		}
		return nil
	})
	return now
}

// AwaitGone waits until a VM is gone and returns how long that took.
func (w *World) AwaitGone(t testing.TB, vm *api.VirtualMachine, within time.Duration) time.Duration {
	t.Helper()
	return vmtest.Eventually(t, within, vm.Namespace+"/"+vm.Name+" is gone", func() error {
		if now := w.Get(t, vm); now != nil {
			return fmt.Errorf("finalizers %v; its status is %s", now.Finalizers, Show(now))
		}
		return nil
	})
}

// Show returns a VM's status, for people.
func Show(vm *api.VirtualMachine) string {
	text, err := json.Marshal(vm.Status)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Events returns the events about a VM, or all where vm is nil.
func (w *World) Events(t testing.TB, vm *api.VirtualMachine) []eventsv1.Event {
	t.Helper()
	list, err := w.Kube.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []eventsv1.Event
	for _, e := range list.Items {
		if vm == nil || e.Regarding.UID == vm.UID {
			all = append(all, e)
		}
	}
	return all
}

// AwaitEvent waits for an event about a VM, or about anything where vm is nil.
func (w *World) AwaitEvent(t testing.TB, vm *api.VirtualMachine, reason string) eventsv1.Event {
	t.Helper()
	var found eventsv1.Event
	vmtest.Eventually(t, Soon, "an event of reason "+reason, func() error {
		var had []string
		for _, e := range w.Events(t, vm) {
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

// History is all versions of a VM since it was recorded.
type History struct {
	mu  sync.Mutex
	all []*api.VirtualMachine
	err error
}

// Record follows a VM from the given version on.
func (w *World) Record(t testing.TB, vm *api.VirtualMachine) *History {
	t.Helper()
	h := &History{all: []*api.VirtualMachine{vm}}
	changes, err := w.in(vm.Namespace).Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + vm.Name, ResourceVersion: vm.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer changes.Stop()
		for change := range changes.ResultChan() {
			next, ok := change.Object.(*api.VirtualMachine)
			h.mu.Lock()
			if ok {
				h.all = append(h.all, next)
			} else {
				h.err = apierrors.FromObject(change.Object)
			}
			h.mu.Unlock()
		}
	}()
	return h
}

// Until waits until the history has reached a version and returns all.
func (h *History) Until(t testing.TB, vm *api.VirtualMachine) []*api.VirtualMachine {
	t.Helper()
	var all []*api.VirtualMachine
	vmtest.Eventually(t, Soon, "the watch brings "+vm.Name, func() error {
		h.mu.Lock()
		defer h.mu.Unlock()
		all = append(all[:0], h.all...)
		if last := all[len(all)-1]; h.err != nil || last.ResourceVersion != vm.ResourceVersion {
			return fmt.Errorf("it is at %s, not %s; error %w", last.ResourceVersion, vm.ResourceVersion, h.err)
		}
		return nil
	})
	return all
}
