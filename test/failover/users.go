// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

const (
	// maxPause is the longest time that a user is idle.
	maxPause = 400 * time.Millisecond
	// userLooks is the time between a user's looks.
	userLooks = 100 * time.Millisecond
	// hasty is the share of requests for whose completion a user does not wait.
	hasty = 0.2
)

// book records what users requested.
type book struct {
	mu    sync.Mutex
	asked map[types.UID]Asked
}

func (b *book) note(uid types.UID, change func(*Asked)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked := b.asked[uid]
	change(&asked)
	b.asked[uid] = asked
}

// name returns the VirtualMachine of a server.
func (b *book) name(uid types.UID) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	asked, ok := b.asked[uid]
	return asked.Name, ok
}

// user creates, changes and deletes one VirtualMachine of one name, repeatedly.
type user struct {
	vms    typed.VirtualMachineInterface
	book   *book
	random *chance
	name   string

	// ofMachines : the VirtualMachine is a QEMU machine, and is deleted when the user
	// leaves.
	ofMachines bool

	vm                *api.VirtualMachine
	restarts, resizes int
}

// live runs until stop is closed, then waits for the last request. It ends early
// with ctx.
func (u *user) live(ctx context.Context, stop <-chan struct{}) error {
	for {
		var err error
		switch {
		case u.vm == nil && !over(stop):
			err = u.create(ctx)
		case u.vm != nil && !over(stop):
			err = u.wish(ctx)
		case u.vm != nil && u.ofMachines:
			err = u.delete(ctx)
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		sleep(ctx, u.random.upTo(maxPause))
	}
}

func over(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// create creates the VirtualMachine; a hasty user deletes it at once.
func (u *user) create(ctx context.Context) error {
	b := vmtest.VM(u.name).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").Grace(5)
	starts := 1
	if u.random.often(0.2) {
		b.Action(api.ActionStopped)
		starts = 0
	}
	if err := u.begin(ctx, b.Obj(), starts); err != nil {
		return err
	}
	if u.random.often(hasty) {
		sleep(ctx, u.random.upTo(maxPause))
		return u.delete(ctx)
	}
	return u.granted(ctx, starts)
}

// begin creates the VirtualMachine, which is to be started so many times.
func (u *user) begin(ctx context.Context, vm *api.VirtualMachine, starts int) error {
	err := insist(ctx, func(ctx context.Context) (err error) {
		u.vm, err = u.vms.Create(ctx, vm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the answer to an earlier try was lost
			u.vm, err = u.vms.Get(ctx, u.name, metav1.GetOptions{})
		}
		return err
	})
	if err == nil {
		u.book.note(u.vm.UID, func(a *Asked) { a.Name, a.AtMost = u.name, starts })
	}
	return err
}

// wish requests one more change of a VirtualMachine that is as requested before.
func (u *user) wish(ctx context.Context) error {
	running := u.vm.Spec.Action == api.ActionActive
	switch do := u.random.intn(20); {
	case do < 2:
		return u.delete(ctx)
	case !running && do < 16:
		return u.power(ctx, api.ActionActive)
	case running && do < 5:
		return u.power(ctx, api.ActionPaused)
	case running && do < 9:
		return u.power(ctx, api.ActionStopped)
	case running && do < 14:
		return u.restart(ctx)
	}
	return u.ask(ctx, 0, u.resize())
}

// resize requests another size, of resources that need no restart to change.
func (u *user) resize() func(*api.VirtualMachineSpec) {
	if u.ofMachines {
		u.resizes++
		disk := resource.NewQuantity(int64(1+u.resizes)<<20, resource.BinarySI)
		return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceRootDisk] = *disk }
	}
	cpu := resource.NewMilliQuantity(100+int64(u.random.intn(900)), resource.DecimalSI)
	return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceCPU] = *cpu }
}

func (u *user) power(ctx context.Context, action api.Action) error {
	starts := 0
	if action == api.ActionActive && u.vm.Spec.Action == api.ActionStopped {
		starts = 1
	}
	if action == api.ActionStopped && u.random.often(hasty) {
		return u.offAndOn(ctx)
	}
	return u.ask(ctx, starts, func(spec *api.VirtualMachineSpec) { spec.Action = action })
}

// offAndOn requests a stop and a start, with no time to notice the first request.
func (u *user) offAndOn(ctx context.Context) error {
	u.book.note(u.vm.UID, func(a *Asked) { a.AtMost++ })
	if err := u.edit(ctx, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped }); err != nil {
		return err
	}
	sleep(ctx, u.random.upTo(userLooks))
	return u.ask(ctx, 0, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionActive })
}

// restart requests a restart, or a second one before the first is done: then one
// restart is enough.
func (u *user) restart(ctx context.Context) error {
	if u.random.often(hasty) {
		u.book.note(u.vm.UID, func(a *Asked) { a.AtMost++ })
		if err := u.edit(ctx, u.setRestart()); err != nil {
			return err
		}
		sleep(ctx, u.random.upTo(userLooks))
	}
	return u.ask(ctx, 1, u.setRestart())
}

// setRestart counts up, because times in the API are whole seconds.
func (u *user) setRestart() func(*api.VirtualMachineSpec) {
	u.restarts++
	at := metav1.Unix(int64(u.restarts), 0)
	return func(spec *api.VirtualMachineSpec) { spec.RestartedAt = &at }
}

// ask changes the spec and waits until that is applied, which starts the server so
// many times.
func (u *user) ask(ctx context.Context, starts int, change func(*api.VirtualMachineSpec)) error {
	u.book.note(u.vm.UID, func(a *Asked) { a.AtMost += starts })
	if err := u.edit(ctx, change); err != nil {
		return err
	}
	return u.granted(ctx, starts)
}

// edit changes the spec. It can be repeated when an answer was lost.
func (u *user) edit(ctx context.Context, change func(*api.VirtualMachineSpec)) error {
	return insist(ctx, func(ctx context.Context) error {
		now, err := u.vms.Get(ctx, u.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&now.Spec)
		if now, err = u.vms.Update(ctx, now, metav1.UpdateOptions{}); err == nil {
			u.vm = now
		}
		u.tell(now, err)
		return err
	})
}

// tell records what was requested.
func (u *user) tell(vm *api.VirtualMachine, err error) {
	wish := fmt.Sprintf("%s: %v", time.Now().UTC().Format(time.StampMilli), err)
	if err == nil {
		wish = fmt.Sprintf("%s: generation %d, %s, restart %d", time.Now().UTC().Format(time.StampMilli), vm.Generation, vm.Spec.Action, u.restarts)
	}
	u.book.note(u.vm.UID, func(a *Asked) { a.Wishes = append(a.Wishes, wish) })
}

// granted waits until the VirtualMachine is as its spec says.
func (u *user) granted(ctx context.Context, starts int) error {
	err := u.await(ctx, func(vm *api.VirtualMachine) error {
		if vm == nil || vm.UID != u.vm.UID {
			return errors.New("it is gone")
		}
		u.vm = vm
		return granted(vm)
	})
	if err == nil {
		u.book.note(u.vm.UID, func(a *Asked) { a.AtLeast += starts })
	}
	return err
}

// delete deletes the VirtualMachine and waits until it is gone, because its name is
// used again. It deletes the version that it has just read: without that
// precondition, kube-apiserver removes an object at once if its finalizer is added
// during the deletion (kubernetes/kubernetes #77988), and leaves its server to the
// orphan sweep.
func (u *user) delete(ctx context.Context) error {
	uid := u.vm.UID
	u.book.note(uid, func(a *Asked) { a.DeletedAt = time.Now() })
	err := insist(ctx, func(ctx context.Context) error {
		vm, err := u.vms.Get(ctx, u.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return client.IgnoreNotFound(u.vms.Delete(ctx, u.name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &vm.ResourceVersion},
		}))
	})
	if err != nil {
		return err
	}
	u.vm = nil
	return u.await(ctx, func(vm *api.VirtualMachine) error {
		if vm != nil {
			return fmt.Errorf("it was deleted and is there: %s", rig.Show(vm))
		}
		return nil
	})
}

// await polls until check succeeds. Its error is the last result of check.
func (u *user) await(ctx context.Context, check func(*api.VirtualMachine) error) error {
	var last error
	for ; ctx.Err() == nil; sleep(ctx, userLooks) {
		vm, err := u.look(ctx)
		if err != nil {
			continue
		}
		if last = check(vm); last == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), last)
}

// look returns nil if there is no VirtualMachine.
func (u *user) look(ctx context.Context) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	vm, err := u.vms.Get(ctx, u.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is the answer for none.
	}
	return vm, err
}

// insist repeats an operation until it succeeds, because the API server may be down
// and others write the objects too. An object that the API server finds invalid is a
// final error.
func insist(ctx context.Context, do func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(attempt)
		cancel()
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
			return err
		}
		if sleep(ctx, userLooks); ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// granted returns an error unless a VirtualMachine is as its spec says, by its
// status.
func granted(vm *api.VirtualMachine) error {
	phases := map[api.Action]api.Phase{
		api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped, api.ActionPaused: api.PhasePaused,
	}
	err := rig.Condition(api.ConditionReady, metav1.ConditionTrue)(vm)
	switch {
	case err != nil:
	case vm.Status.Phase != phases[vm.Spec.Action] || vm.Status.ObservedGeneration != vm.Generation:
		err = fmt.Errorf("phase %s of generation %d for action %s of generation %d", vm.Status.Phase, vm.Status.ObservedGeneration, vm.Spec.Action, vm.Generation)
	case vm.Spec.RestartedAt != nil && !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt):
		err = fmt.Errorf("restarted at %v, not %v", vm.Status.RestartedAt, vm.Spec.RestartedAt)
	}
	if err != nil {
		err = fmt.Errorf("%w; its status is %s", err, rig.Show(vm))
	}
	return err
}
