// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// users simulates users: there is one VirtualMachine at a time for each of a few names.
type users struct {
	environment *environment
	random      *rand.Rand
	names       []string
	next        time.Time
	active      bool
	// wanted has the requests for each VirtualMachine that ever existed.
	wanted     map[types.UID]*wanted
	actions    int
	tempo      int64
	orphans    int
	deleteNext string // name of the VirtualMachine that is deleted next, or empty
	stamps     int
}

// wanted has the requests for a VirtualMachine.
type wanted struct {
	rules.Requested

	deleted bool
	retain  bool
	// lost is set once the server was removed without Drover.
	lost bool
	// forced is set once a user has removed the finalizer by hand.
	forced bool
	// pending is the part of AtLeast that a further request may still undo.
	pending int
}

func newUsers(env *environment, random *rand.Rand) *users {
	u := &users{environment: env, random: random, active: true, wanted: map[types.UID]*wanted{}}
	for n := range 1 + random.IntN(3) {
		u.names = append(u.names, fmt.Sprintf("vm%d", n+1))
	}
	u.tempo = 1 + random.Int64N(4)
	u.next = time.Now().Add(u.pause())
	return u
}

// pause returns the time until the next action: mostly short, and sometimes long enough for Drover to finish.
func (u *users) pause() time.Duration {
	most := []time.Duration{300 * time.Millisecond, 3 * time.Second, 12 * time.Second}[u.random.IntN(3)]
	return time.Duration(u.random.Int64N(int64(most)) / u.tempo)
}

// act takes the next action if it is due. It takes the same random numbers whatever has
// happened, so that a run without faults has similar requests.
func (u *users) act() {
	if !u.active || time.Now().Before(u.next) {
		return
	}
	u.next = time.Now().Add(u.pause())
	name := u.names[u.random.IntN(len(u.names))]
	if u.deleteNext != "" {
		u.deleteJustCreated()
		return
	}
	roll, detail := u.random.IntN(100), u.random.IntN(1000)
	vm := u.environment.object(name)
	switch {
	case vm == nil:
		u.create(name, detail)
	case vm.DeletionTimestamp != nil && roll < 8 && len(vm.Finalizers) > 0 && u.orphans < maxOrphans:
		u.removeFinalizer(vm)
	case vm.DeletionTimestamp != nil:
	case roll < 12:
		u.delete(vm)
	case roll < 20:
		u.change(vm, "is resized", func(s *api.VirtualMachineSpec) {
			s.Resource[api.ResourceCPU] = resource.MustParse(fmt.Sprint(1 + detail%8))
		})
	case roll < 40:
		u.restart(vm)
	case roll < 45:
		u.change(vm, "is retained or not", func(s *api.VirtualMachineSpec) {
			s.DeletionPolicy = []api.DeletionPolicy{api.DeletionRetain, api.DeletionDelete}[detail%2]
		})
	default:
		action := []api.Action{api.ActionActive, api.ActionActive, api.ActionStopped, api.ActionPaused}[detail%4]
		u.change(vm, "is set to "+string(action), func(s *api.VirtualMachineSpec) { s.Action = action })
	}
}

// create creates a VirtualMachine, unless it might be bound to the other engine, because that engine
// answers now or a process has not noticed that it does not any more.
func (u *users) create(name string, detail int) {
	if !u.environment.exchangedAt.IsZero() || slices.ContainsFunc(u.environment.processes(), (*process).mayBindToOther) {
		return
	}
	vm := framework.NewVM(name).GracePeriod(int64(1 + detail%20)).Obj()
	vm.Spec.Action = []api.Action{api.ActionActive, api.ActionActive, api.ActionActive, api.ActionStopped, api.ActionPaused}[detail%5]
	vm.Spec.DeletionPolicy, vm.Spec.RestartPolicy = api.DeletionDelete, api.RestartAlways
	vm.Status.ObservedGeneration = -1
	made, err := u.environment.api.create(vm)
	if err != nil {
		panic(err)
	}
	u.actions++
	u.environment.trace("USER %s is created, %s, as %s", name, vm.Spec.Action, shortUID(made.GetUID()))
	want := &wanted{Requested: rules.Requested{Name: name}}
	u.wanted[made.GetUID()] = want
	if vm.Spec.Action != api.ActionStopped {
		want.AtMost, want.pending = 1, 1
	}
	if detail%4 == 0 {
		u.deleteNext = name
	}
}

func (u *users) delete(vm *api.VirtualMachine) {
	want := u.wanted[vm.UID]
	want.deleted, want.retain = true, vm.Spec.DeletionPolicy == api.DeletionRetain
	u.settlePending(vm, want)
	u.actions++
	u.environment.trace("USER %s is deleted", vm.Name)
	if err := u.environment.api.delete(keyOf(vm)); err != nil {
		panic(err)
	}
}

// deleteJustCreated deletes the VirtualMachine that was just created.
func (u *users) deleteJustCreated() {
	vm := u.environment.object(u.deleteNext)
	u.deleteNext = ""
	if vm != nil && vm.DeletionTimestamp == nil {
		u.delete(vm)
	}
}

// maxOrphans is how many orphans users may leave: the sweep freezes if there are more than three.
const maxOrphans = 2

// removeFinalizer removes Drover's finalizer by hand, which leaves an orphan.
func (u *users) removeFinalizer(vm *api.VirtualMachine) {
	u.orphans++
	u.wanted[vm.UID].forced = true
	next := vm.DeepCopy()
	next.Finalizers = nil
	u.update(next, "loses its finalizer")
}

// settlePending adds the starts of the last request to AtLeast, if the request is complete.
func (u *users) settlePending(vm *api.VirtualMachine, want *wanted) (applied bool) {
	applied = u.environment.judge.checkApplied(vm) == nil
	if applied {
		want.AtLeast += want.pending
	}
	want.pending = 0
	return applied
}

func (u *users) change(vm *api.VirtualMachine, what string, change func(*api.VirtualMachineSpec)) {
	next := vm.DeepCopy()
	change(&next.Spec)
	want := u.wanted[vm.UID]
	applied := u.settlePending(vm, want)
	if vm.Spec.Action == api.ActionStopped && next.Spec.Action != api.ActionStopped {
		want.AtMost++
		if applied {
			want.pending = 1
		}
	}
	u.update(next, what)
}

func (u *users) restart(vm *api.VirtualMachine) {
	if vm.Spec.Action != api.ActionActive {
		return
	}
	u.stamps++
	next, want := vm.DeepCopy(), u.wanted[vm.UID]
	next.Spec.RestartedAt = new(metav1.NewTime(u.environment.began.Add(time.Duration(u.stamps) * time.Second).Truncate(time.Second)))
	if u.settlePending(vm, want) {
		want.pending = 1
	}
	want.AtMost++
	u.update(next, "is restarted")
}

func (u *users) update(vm *api.VirtualMachine, what string) {
	u.actions++
	u.environment.trace("USER %s %s", vm.Name, what)
	if _, err := u.environment.api.update(vm, false); err != nil {
		panic(err)
	}
}
