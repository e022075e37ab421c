// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package specs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// states records every state of the VirtualMachines of a namespace that a watch reports.
type states struct {
	ns string

	mu         sync.Mutex
	latest     map[string]*api.VirtualMachine
	seen       int
	violations []string
	err        error
}

// watchStates watches the VirtualMachines of a namespace until the test ends.
func watchStates(t *testing.T, ns string) *states {
	t.Helper()
	s := &states{ns: ns, latest: map[string]*api.VirtualMachine{}}
	ctx, stop := context.WithCancel(context.Background())
	events, err := environment.WatchVMs(ctx, ns, "", "")
	if err != nil {
		stop()
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-done
	})
	go func() {
		defer close(done)
		defer events.Stop()
		for event := range events.ResultChan() {
			s.record(event)
		}
		s.fail(ctx, fmt.Errorf("the watch of %s has ended", ns))
	}()
	return s
}

func (s *states) fail(ctx context.Context, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.err = err
	}
}

func (s *states) record(event watch.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	vm, ok := event.Object.(*api.VirtualMachine)
	if !ok {
		s.err = fmt.Errorf("the watch reports %+v", event.Object)
		return
	}
	s.seen++
	for _, wrong := range checkState(s.latest[vm.Name], vm) {
		s.violations = append(s.violations, fmt.Sprintf("%s: %s: spec %s, status %s", vm.Name, wrong, specText(vm), framework.FormatStatus(vm)))
	}
	s.latest[vm.Name] = vm
	if event.Type == watch.Deleted {
		delete(s.latest, vm.Name)
	}
}

func specText(vm *api.VirtualMachine) string {
	text, _ := json.Marshal(vm.Spec)
	if len(text) > 1000 {
		text = append(text[:1000:1000], "..."...)
	}
	return string(text)
}

// wait waits until check accepts a VirtualMachine, and returns it. A deleted VirtualMachine is nil.
func (s *states) wait(what string, name string, check func(*api.VirtualMachine) bool) (*api.VirtualMachine, error) {
	var vm *api.VirtualMachine
	var ended error
	err := assert.Poll(context.Background(), name+" is "+what, func() error {
		s.mu.Lock()
		vm, ended = s.latest[name], s.err
		s.mu.Unlock()
		isOver := ended != nil || check(vm)
		switch {
		case isOver:
			return nil
		case vm == nil:
			return errors.New("it does not exist")
		}
		return fmt.Errorf("spec %s, status %s", specText(vm), framework.FormatStatus(vm))
	})
	if err := errors.Join(err, ended); err != nil {
		return nil, err
	}
	return vm, nil
}

// all returns the VirtualMachines by name.
func (s *states) all() map[string]*api.VirtualMachine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.latest)
}

// report returns the number of recorded states, and their violations.
func (s *states) report() (seen int, violations []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen, s.violations
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)

// checkState returns the violations of a state: of the rules of kstatus, of the API's conventions,
// and of rules about the state before.
func checkState(before, vm *api.VirtualMachine) (wrong []string) {
	is := func(kind string) bool { return meta.IsStatusConditionTrue(vm.Status.Conditions, kind) }
	add := func(bad bool, format string, args ...any) {
		if bad {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	observed := vm.Status.ObservedGeneration
	add(observed > vm.Generation, "observedGeneration is %d, and the generation %d", observed, vm.Generation)
	add(before != nil && before.UID == vm.UID && observed < before.Status.ObservedGeneration, "observedGeneration goes back to %d", observed)
	add(is(api.ConditionReady) && is(api.ConditionStalled), "it is Ready and Stalled")
	add(is(api.ConditionReady) && vm.Status.Operation != nil && vm.Status.Operation.Failure == api.FailureRefused, "it is Ready, and a step is refused")
	add(is(api.ConditionReady) && is(api.ConditionRestartRequired), "it is Ready, and a change waits for a restart")
	for _, c := range vm.Status.Conditions {
		add(c.ObservedGeneration > vm.Generation || !camelCase.MatchString(c.Reason) || c.LastTransitionTime.IsZero(), "condition %+v is not by the conventions", c)
	}
	text, _ := json.Marshal(vm.Status)
	add(strings.Contains(string(text), secretText), "the status has a secret")
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(vm)
	if err != nil {
		return append(wrong, err.Error())
	}
	content["apiVersion"], content["kind"] = api.SchemeGroupVersion.String(), "VirtualMachine"
	computed, err := status.Compute(&unstructured.Unstructured{Object: content})
	if err != nil {
		return append(wrong, err.Error())
	}
	return append(wrong, checkComputed(vm, computed.Status)...)
}

// checkComputed compares what kstatus computes with the conditions.
func checkComputed(vm *api.VirtualMachine, computed status.Status) (wrong []string) {
	latest := vm.Status.ObservedGeneration == vm.Generation
	want := status.InProgressStatus
	switch {
	case vm.DeletionTimestamp != nil:
		want = status.TerminatingStatus
	case latest && meta.IsStatusConditionTrue(vm.Status.Conditions, api.ConditionStalled):
		want = status.FailedStatus
	case latest && meta.IsStatusConditionTrue(vm.Status.Conditions, api.ConditionReady):
		want = status.CurrentStatus
	}
	if computed != want {
		wrong = append(wrong, fmt.Sprintf("kstatus computes %s, want %s", computed, want))
	}
	return wrong
}
