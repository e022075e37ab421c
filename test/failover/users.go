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
	"cloudnative.tw/drover/test/framework"
)

const (
	// maxIdleTime is the longest time that a user is idle.
	maxIdleTime = 400 * time.Millisecond
	// userPollPeriod is the time between a user's looks.
	userPollPeriod = 100 * time.Millisecond
	// impatientShare is the share of requests for whose completion a user does not wait.
	impatientShare = 0.2
)

// requestLog records what users requested.
type requestLog struct {
	mu        sync.Mutex
	requested map[types.UID]Requested
}

func (b *requestLog) update(uid types.UID, change func(*Requested)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requested := b.requested[uid]
	change(&requested)
	b.requested[uid] = requested
}

// vmName returns the VirtualMachine of a server.
func (b *requestLog) vmName(uid types.UID) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	requested, ok := b.requested[uid]
	return requested.Name, ok
}

// user creates, changes and deletes one VirtualMachine of one name, repeatedly.
type user struct {
	vms    typed.VirtualMachineInterface
	book   *requestLog
	random *randomSource
	name   string

	// usesQEMU : the VirtualMachine is a QEMU machine, and is deleted when the user
	// leaves.
	usesQEMU bool

	vm                *api.VirtualMachine
	restarts, resizes int
}

// runUntilStopped runs until stop is closed, then waits for the last request. It ends early
// with ctx.
func (u *user) runUntilStopped(ctx context.Context, stop <-chan struct{}) error {
	for {
		var err error
		switch {
		case u.vm == nil && !isClosed(stop):
			err = u.createRandomVM(ctx)
		case u.vm != nil && !isClosed(stop):
			err = u.requestChange(ctx)
		case u.vm != nil && u.usesQEMU:
			err = u.deleteVM(ctx)
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", u.name, err)
		}
		sleepContext(ctx, u.random.durationUpTo(maxIdleTime))
	}
}

func isClosed(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// createRandomVM creates the VirtualMachine; an impatient user deletes it immediately.
func (u *user) createRandomVM(ctx context.Context) error {
	b := framework.NewVM(u.name).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(5)
	starts := 1
	if u.random.withProbability(0.2) {
		b.Action(api.ActionStopped)
		starts = 0
	}
	if err := u.createVM(ctx, b.Obj(), starts); err != nil {
		return err
	}
	if u.random.withProbability(impatientShare) {
		sleepContext(ctx, u.random.durationUpTo(maxIdleTime))
		return u.deleteVM(ctx)
	}
	return u.waitUntilApplied(ctx, starts)
}

// createVM creates the VirtualMachine, which is to be started so many times.
func (u *user) createVM(ctx context.Context, vm *api.VirtualMachine, starts int) error {
	err := retryRequest(ctx, func(ctx context.Context) (err error) {
		u.vm, err = u.vms.Create(ctx, vm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the response to an earlier attempt was lost
			u.vm, err = u.vms.Get(ctx, u.name, metav1.GetOptions{})
		}
		return err
	})
	if err == nil {
		u.book.update(u.vm.UID, func(a *Requested) { a.Name, a.AtMost = u.name, starts })
	}
	return err
}

// requestChange requests one more change of a VirtualMachine that is as requested before.
func (u *user) requestChange(ctx context.Context) error {
	running := u.vm.Spec.Action == api.ActionActive
	switch do := u.random.intN(20); {
	case do < 2:
		return u.deleteVM(ctx)
	case !running && do < 16:
		return u.requestAction(ctx, api.ActionActive)
	case running && do < 5:
		return u.requestAction(ctx, api.ActionPaused)
	case running && do < 9:
		return u.requestAction(ctx, api.ActionStopped)
	case running && do < 14:
		return u.requestRestart(ctx)
	}
	return u.applyChange(ctx, 0, u.randomResize())
}

// randomResize requests another size, of resources that need no restart to change.
func (u *user) randomResize() func(*api.VirtualMachineSpec) {
	if u.usesQEMU {
		u.resizes++
		disk := resource.NewQuantity(int64(1+u.resizes)<<20, resource.BinarySI)
		return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceRootDisk] = *disk }
	}
	cpu := resource.NewMilliQuantity(100+int64(u.random.intN(900)), resource.DecimalSI)
	return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceCPU] = *cpu }
}

func (u *user) requestAction(ctx context.Context, action api.Action) error {
	starts := 0
	if action == api.ActionActive && u.vm.Spec.Action == api.ActionStopped {
		starts = 1
	}
	if action == api.ActionStopped && u.random.withProbability(impatientShare) {
		return u.requestStopAndStart(ctx)
	}
	return u.applyChange(ctx, starts, func(spec *api.VirtualMachineSpec) { spec.Action = action })
}

// requestStopAndStart requests a stop and a start, with no time to notice the first
// request.
func (u *user) requestStopAndStart(ctx context.Context) error {
	u.book.update(u.vm.UID, func(a *Requested) { a.AtMost++ })
	if err := u.updateSpec(ctx, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped }); err != nil {
		return err
	}
	sleepContext(ctx, u.random.durationUpTo(userPollPeriod))
	return u.applyChange(ctx, 0, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionActive })
}

// requestRestart requests a restart, or a second one before the first is done: then one
// restart is enough.
func (u *user) requestRestart(ctx context.Context) error {
	if u.random.withProbability(impatientShare) {
		u.book.update(u.vm.UID, func(a *Requested) { a.AtMost++ })
		if err := u.updateSpec(ctx, u.nextRestart()); err != nil {
			return err
		}
		sleepContext(ctx, u.random.durationUpTo(userPollPeriod))
	}
	return u.applyChange(ctx, 1, u.nextRestart())
}

// nextRestart counts up, because times in the API are whole seconds.
func (u *user) nextRestart() func(*api.VirtualMachineSpec) {
	u.restarts++
	at := metav1.Unix(int64(u.restarts), 0)
	return func(spec *api.VirtualMachineSpec) { spec.RestartedAt = &at }
}

// applyChange changes the spec and waits until that is applied, which starts the server so
// many times.
func (u *user) applyChange(ctx context.Context, starts int, change func(*api.VirtualMachineSpec)) error {
	u.book.update(u.vm.UID, func(a *Requested) { a.AtMost += starts })
	if err := u.updateSpec(ctx, change); err != nil {
		return err
	}
	return u.waitUntilApplied(ctx, starts)
}

// updateSpec changes the spec. It can be repeated when a response was lost.
func (u *user) updateSpec(ctx context.Context, change func(*api.VirtualMachineSpec)) error {
	return retryRequest(ctx, func(ctx context.Context) error {
		now, err := u.vms.Get(ctx, u.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&now.Spec)
		if now, err = u.vms.Update(ctx, now, metav1.UpdateOptions{}); err == nil {
			u.vm = now
		}
		u.logRequest(now, err)
		return err
	})
}

// logRequest records what was requested.
func (u *user) logRequest(vm *api.VirtualMachine, err error) {
	entry := fmt.Sprintf("%s: %v", time.Now().UTC().Format(time.StampMilli), err)
	if err == nil {
		entry = fmt.Sprintf("%s: generation %d, %s, restart %d", time.Now().UTC().Format(time.StampMilli), vm.Generation, vm.Spec.Action, u.restarts)
	}
	u.book.update(u.vm.UID, func(a *Requested) { a.Log = append(a.Log, entry) })
}

// waitUntilApplied waits until the VirtualMachine is as its spec says.
func (u *user) waitUntilApplied(ctx context.Context, starts int) error {
	err := u.waitFor(ctx, func(vm *api.VirtualMachine) error {
		if vm == nil || vm.UID != u.vm.UID {
			return errors.New("it is gone")
		}
		u.vm = vm
		return checkApplied(vm)
	})
	if err == nil {
		u.book.update(u.vm.UID, func(a *Requested) { a.AtLeast += starts })
	}
	return err
}

// deleteVM deletes the VirtualMachine and waits until it is gone, because its name is
// used again. It deletes the version that it has just read: without that
// precondition, kube-apiserver removes an object immediately if its finalizer is added
// during the deletion (kubernetes/kubernetes #77988), and leaves its server to the
// orphan sweep.
func (u *user) deleteVM(ctx context.Context) error {
	uid := u.vm.UID
	u.book.update(uid, func(a *Requested) { a.DeletedAt = time.Now() })
	err := retryRequest(ctx, func(ctx context.Context) error {
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
	return u.waitFor(ctx, func(vm *api.VirtualMachine) error {
		if vm != nil {
			return fmt.Errorf("it was deleted and still exists: %s", framework.FormatStatus(vm))
		}
		return nil
	})
}

// waitFor polls until check succeeds. Its error is the last result of check.
func (u *user) waitFor(ctx context.Context, check func(*api.VirtualMachine) error) error {
	var last error
	for ; ctx.Err() == nil; sleepContext(ctx, userPollPeriod) {
		vm, err := u.getVM(ctx)
		if err != nil {
			continue
		}
		if last = check(vm); last == nil {
			return nil
		}
	}
	return fmt.Errorf("%w: %w", context.Cause(ctx), last)
}

// getVM returns nil if there is no VirtualMachine.
func (u *user) getVM(ctx context.Context) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	vm, err := u.vms.Get(ctx, u.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is the answer for none.
	}
	return vm, err
}

// retryRequest repeats an operation until it succeeds, because the API server may be down
// and others write the objects too. An object that the API server finds invalid is a
// final error.
func retryRequest(ctx context.Context, do func(context.Context) error) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		err := do(attempt)
		cancel()
		if err == nil || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
			return err
		}
		if sleepContext(ctx, userPollPeriod); ctx.Err() != nil {
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// checkApplied returns an error unless a VirtualMachine is as its spec says, by its
// status.
func checkApplied(vm *api.VirtualMachine) error {
	phases := map[api.Action]api.Phase{
		api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped, api.ActionPaused: api.PhasePaused,
	}
	err := framework.HasCondition(api.ConditionReady, metav1.ConditionTrue)(vm)
	switch {
	case err != nil:
	case vm.Status.Phase != phases[vm.Spec.Action] || vm.Status.ObservedGeneration != vm.Generation:
		err = fmt.Errorf("phase %s of generation %d for action %s of generation %d", vm.Status.Phase, vm.Status.ObservedGeneration, vm.Spec.Action, vm.Generation)
	case vm.Spec.RestartedAt != nil && !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt):
		err = fmt.Errorf("restarted at %v, not %v", vm.Status.RestartedAt, vm.Spec.RestartedAt)
	}
	if err != nil {
		err = fmt.Errorf("%w; its status is %s", err, framework.FormatStatus(vm))
	}
	return err
}
