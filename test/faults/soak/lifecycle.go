// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/users"
)

// How often users act, and for how long.
const (
	hastyShare     = 0.1 // of lifecycles: deleted while they are created
	retainShare    = 0.1 // of lifecycles: deleted with deletionPolicy Retain
	impatientShare = 0.2 // of requests: the user does not wait for completion
	// maxChanges is the most requests between creation and deletion.
	maxChanges = 4
	// maxImpatientDelay is the longest time until the next request of a user who does not wait.
	maxImpatientDelay = 300 * time.Millisecond
)

// lifecycle is a VirtualMachine from its creation to its end.
type lifecycle struct {
	name          string
	random        *rand.Rand
	hasty, retain bool
	action        api.Action
	restarts      int64
	// atLeast and atMost are how often the server should be started. They differ if a user did
	// not wait for a request.
	atLeast, atMost int
	// settled is set if the last request is complete, and ready once the VirtualMachine was ever Ready.
	settled, ready bool
}

func newLifecycle(seed uint64, n int) *lifecycle {
	random := users.NewRandom(seed, uint64(n)) // #nosec -- a number of a seed
	return &lifecycle{
		name: fmt.Sprintf("vm-%d", n), random: random, action: api.ActionActive,
		hasty: random.Float64() < hastyShare, retain: random.Float64() < retainShare,
	}
}

// live creates the VirtualMachine and changes it.
func (l *lifecycle) live(ctx context.Context, s *soak) error {
	vm := s.Engine.NewVM(l.name)
	if l.retain {
		vm.DeletionPolicy(api.DeletionRetain)
	}
	l.atMost = 1
	if err := s.world.CreateVM(ctx, vm.Obj()); err != nil {
		return err
	}
	if l.hasty {
		return l.hurry(ctx, s)
	}
	if err := s.world.WaitVM(ctx, l.name, isApplied); err != nil {
		return err
	}
	l.atLeast, l.settled, l.ready = 1, true, true
	for range 1 + l.random.IntN(maxChanges) {
		if err := l.change(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// hurry waits until Drover has added its finalizer, or for a random time, or not at all.
func (l *lifecycle) hurry(ctx context.Context, s *soak) error {
	switch l.random.IntN(3) {
	case 0:
		return s.world.WaitVM(ctx, l.name, hasFinalizer)
	case 1:
		framework.Sleep(ctx, users.UpTo(l.random, maxImpatientDelay))
	}
	return nil
}

func hasFinalizer(vm *api.VirtualMachine) error {
	return assert.ErrorUnless(slices.Contains(vm.Finalizers, api.FinalizerServer), "it lacks the finalizer")
}

func isApplied(vm *api.VirtualMachine) error {
	return errors.Join(hasFinalizer(vm), users.CheckApplied(vm))
}

// request is something that a user may request of a server.
type request struct {
	name string
	// starts is how often the request starts a server. patient says that the user must wait for it.
	starts  int
	patient bool
	change  func(l *lifecycle, e lab.Engine, vm *api.VirtualMachine)
}

// requests are the requests that make sense after each action.
var requests = map[api.Action][]request{
	api.ActionActive:  {act(api.ActionStopped, 0), act(api.ActionPaused, 0), restart, resize, replace},
	api.ActionStopped: {act(api.ActionActive, 1), act(api.ActionActive, 1), resize, replace},
	api.ActionPaused:  {act(api.ActionActive, 0), act(api.ActionActive, 0), act(api.ActionStopped, 0), resize},
}

func act(a api.Action, starts int) request {
	return request{string(a), starts, false, func(l *lifecycle, _ lab.Engine, vm *api.VirtualMachine) {
		vm.Spec.Action, l.action = a, a
	}}
}

var (
	// restart counts up, because times in the API are whole seconds.
	restart = request{"restart", 1, false, func(l *lifecycle, _ lab.Engine, vm *api.VirtualMachine) {
		l.restarts++
		vm.Spec.RestartedAt = new(metav1.Unix(l.restarts, 0))
	}}
	resize = request{"resize", 0, false, func(_ *lifecycle, e lab.Engine, vm *api.VirtualMachine) { e.Resize(vm) }}
	// replace does what kubectl replace does with a manifest without finalizer and binding. It is
	// patient, because a deletion right after it would leave the server to the orphan sweep.
	replace = request{"replace", 0, true, func(_ *lifecycle, e lab.Engine, vm *api.VirtualMachine) {
		vm.Finalizers, vm.Annotations = nil, nil
		e.Resize(vm)
	}}
)

// change makes a random request, and mostly waits until it is complete.
func (l *lifecycle) change(ctx context.Context, s *soak) error {
	possible := requests[l.action]
	r := possible[l.random.IntN(len(possible))]
	l.atMost += r.starts
	if err := s.world.UpdateVM(ctx, l.name, func(vm *api.VirtualMachine) { r.change(l, s.Engine, vm) }); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	wasSettled := l.settled
	l.settled = r.patient || l.random.Float64() >= impatientShare
	if !l.settled {
		framework.Sleep(ctx, users.UpTo(l.random, maxImpatientDelay))
		return nil
	}
	if wasSettled {
		l.atLeast += r.starts
	}
	return s.world.WaitVM(ctx, l.name, isApplied)
}

// awaitState waits until the last request is complete.
func (l *lifecycle) awaitState(ctx context.Context, s *soak) error {
	if l.hasty {
		l.atLeast, l.ready = 1, true
	}
	return s.world.WaitVM(ctx, l.name, isApplied)
}

// end deletes the VirtualMachine.
func (l *lifecycle) end(ctx context.Context, s *soak) error {
	if err := s.world.DeleteVM(ctx, l.name); err != nil {
		return err
	}
	return s.world.WaitGone(ctx, l.name)
}

// check compares the effects on the VirtualMachine's servers with the requests.
func (l *lifecycle) check(e lab.Effects, killed int) []lab.Violation {
	switch {
	case e.Creates > 1 || e.Creates == 0 && l.ready:
		return []lab.Violation{{Rule: rules.OneServer, Text: fmt.Sprintf("%s had %d servers", l.name, e.Creates)}}
	case e.Deletes+e.Releases != e.Creates:
		return []lab.Violation{{Rule: rules.NoOrphans, Text: fmt.Sprintf("%s did not lose each server once: %+v", l.name, e)}}
	case l.retain && e.Deletes > 0, !l.retain && e.Releases > 0:
		return []lab.Violation{{Rule: rules.AsRequested, Text: fmt.Sprintf("%s, retain %v, had %+v", l.name, l.retain, e)}}
	case e.Runs < l.atLeast || e.Runs > l.atMost+killed:
		return []lab.Violation{{Rule: rules.AsRequested, Text: fmt.Sprintf("%s was started %d times, want %d to %d", l.name, e.Runs, l.atLeast, l.atMost+killed)}}
	}
	return nil
}
