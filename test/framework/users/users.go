// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package users simulates users, each with a separate VirtualMachine, and records their
// requests, which a test then compares with the result.
//
// Start with User in users.go; log.go has the record.
package users

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	typed "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

const (
	// maxImpatientDelay is the longest time between two requests of a user who does not wait.
	maxImpatientDelay = 100 * time.Millisecond
	// maxIdleTime is the longest time that a user is idle.
	maxIdleTime = 400 * time.Millisecond
	// impatientShare is the fraction of requests after which a user does not wait for completion.
	impatientShare = 0.2
)

// User repeatedly creates, changes and deletes a VirtualMachine, always with the same name.
type User struct {
	VMs    typed.VirtualMachineInterface
	Log    *Log
	Random *rand.Rand
	Name   string

	// UsesQEMU is set if the VirtualMachine is a QEMU machine. The user deletes such a VirtualMachine at
	// the end.
	UsesQEMU bool

	vm                *api.VirtualMachine
	restarts, resizes int
}

// Run sends requests until stop is closed, and then waits until the last request is
// complete. It returns early if ctx ends.
func (u *User) Run(ctx context.Context, stop <-chan struct{}) error {
	for {
		var err error
		switch {
		case u.vm == nil && !isClosed(stop):
			err = u.createRandomVM(ctx)
		case u.vm != nil && !isClosed(stop):
			err = u.requestChange(ctx)
		case u.vm != nil && u.UsesQEMU:
			err = u.DeleteVM(ctx)
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: %w", u.Name, err)
		}
		framework.Sleep(ctx, UpTo(u.Random, maxIdleTime))
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
func (u *User) createRandomVM(ctx context.Context) error {
	b := framework.NewVM(u.Name).Resource(api.ResourceCPU, "100m").Resource(api.ResourceMemory, "32M").GracePeriod(5)
	starts := 1
	if u.Random.Float64() < 0.2 {
		b.Action(api.ActionStopped)
		starts = 0
	}
	if err := u.CreateVM(ctx, b.Obj(), starts); err != nil {
		return err
	}
	if u.Random.Float64() < impatientShare {
		framework.Sleep(ctx, UpTo(u.Random, maxIdleTime))
		return u.DeleteVM(ctx)
	}
	return u.WaitUntilApplied(ctx, starts)
}

// CreateVM creates the VirtualMachine, and records how often its server should be started.
func (u *User) CreateVM(ctx context.Context, vm *api.VirtualMachine, starts int) error {
	err := RetryRequest(ctx, func(ctx context.Context) (err error) {
		u.vm, err = u.VMs.Create(ctx, vm, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the response to an earlier attempt was lost
			u.vm, err = u.VMs.Get(ctx, u.Name, metav1.GetOptions{})
		}
		return err
	})
	if err == nil {
		u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.Name, a.AtMost = u.Name, starts })
	}
	return err
}

// requestChange requests a random change, once the previous change is complete.
func (u *User) requestChange(ctx context.Context) error {
	running := u.vm.Spec.Action == api.ActionActive
	switch do := u.Random.IntN(20); {
	case do < 2:
		return u.DeleteVM(ctx)
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

// randomResize returns a change of a resource that can change without a restart.
func (u *User) randomResize() func(*api.VirtualMachineSpec) {
	if u.UsesQEMU {
		u.resizes++
		disk := resource.NewQuantity(int64(1+u.resizes)<<20, resource.BinarySI)
		return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceRootDisk] = *disk }
	}
	cpu := resource.NewMilliQuantity(100+int64(u.Random.IntN(900)), resource.DecimalSI)
	return func(spec *api.VirtualMachineSpec) { spec.Resource[api.ResourceCPU] = *cpu }
}

func (u *User) requestAction(ctx context.Context, action api.Action) error {
	starts := 0
	if action == api.ActionActive && u.vm.Spec.Action == api.ActionStopped {
		starts = 1
	}
	if action == api.ActionStopped && u.Random.Float64() < impatientShare {
		return u.requestStopAndStart(ctx)
	}
	return u.applyChange(ctx, starts, func(spec *api.VirtualMachineSpec) { spec.Action = action })
}

// requestStopAndStart requests a stop and a start, with too little time to act on the
// first request.
func (u *User) requestStopAndStart(ctx context.Context) error {
	u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.AtMost++ })
	if err := u.updateSpec(ctx, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped }); err != nil {
		return err
	}
	framework.Sleep(ctx, UpTo(u.Random, maxImpatientDelay))
	return u.applyChange(ctx, 0, func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionActive })
}

// requestRestart requests a restart, and sometimes a second one before the first is done.
// The server may then restart only once.
func (u *User) requestRestart(ctx context.Context) error {
	if u.Random.Float64() < impatientShare {
		u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.AtMost++ })
		if err := u.updateSpec(ctx, u.nextRestart()); err != nil {
			return err
		}
		framework.Sleep(ctx, UpTo(u.Random, maxImpatientDelay))
	}
	return u.applyChange(ctx, 1, u.nextRestart())
}

// nextRestart uses a counter as restartedAt. Two restarts within a second would have the same time,
// since times in the API are whole seconds.
func (u *User) nextRestart() func(*api.VirtualMachineSpec) {
	u.restarts++
	at := metav1.Unix(int64(u.restarts), 0)
	return func(spec *api.VirtualMachineSpec) { spec.RestartedAt = &at }
}

// applyChange changes the spec and waits until the change is applied. starts is how often this should
// start the server.
func (u *User) applyChange(ctx context.Context, starts int, change func(*api.VirtualMachineSpec)) error {
	u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.AtMost += starts })
	if err := u.updateSpec(ctx, change); err != nil {
		return err
	}
	return u.WaitUntilApplied(ctx, starts)
}

// updateSpec changes the spec, and retries if a response was lost.
func (u *User) updateSpec(ctx context.Context, change func(*api.VirtualMachineSpec)) error {
	return RetryRequest(ctx, func(ctx context.Context) error {
		now, err := u.VMs.Get(ctx, u.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(&now.Spec)
		if now, err = u.VMs.Update(ctx, now, metav1.UpdateOptions{}); err == nil {
			u.vm = now
		}
		u.logRequest(now, err)
		return err
	})
}

func (u *User) logRequest(vm *api.VirtualMachine, err error) {
	entry := fmt.Sprintf("%s: %v", time.Now().UTC().Format(time.StampMilli), err)
	if err == nil {
		entry = fmt.Sprintf("%s: generation %d, %s, restart %d", time.Now().UTC().Format(time.StampMilli), vm.Generation, vm.Spec.Action, u.restarts)
	}
	u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.Log = append(a.Log, entry) })
}

// WaitUntilApplied waits until the VirtualMachine's status says that its spec is applied.
func (u *User) WaitUntilApplied(ctx context.Context, starts int) error {
	err := u.WaitFor(ctx, func(vm *api.VirtualMachine) error {
		if vm == nil || vm.UID != u.vm.UID {
			return errors.New("the VirtualMachine is gone")
		}
		u.vm = vm
		return CheckApplied(vm)
	})
	if err == nil {
		u.Log.updateRequest(u.vm.UID, func(a *rules.Requested) { a.AtLeast += starts })
	}
	return err
}

// DeleteVM deletes the VirtualMachine and waits until it is gone, because the user uses
// its name again. The deletion has the version that was just read as a precondition:
// otherwise kube-apiserver removes an object immediately if a finalizer is added during
// the deletion (kubernetes/kubernetes #77988), which leaves the server to the orphan
// sweep.
func (u *User) DeleteVM(ctx context.Context) error {
	uid := u.vm.UID
	u.Log.updateRequest(uid, func(a *rules.Requested) { a.DeletedAt = time.Now() })
	err := RetryRequest(ctx, func(ctx context.Context) error {
		vm, err := u.VMs.Get(ctx, u.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		return client.IgnoreNotFound(u.VMs.Delete(ctx, u.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &vm.ResourceVersion},
		}))
	})
	if err != nil {
		return err
	}
	u.vm = nil
	return u.WaitFor(ctx, func(vm *api.VirtualMachine) error {
		if vm != nil {
			return fmt.Errorf("the VirtualMachine was deleted and still exists: %s", framework.FormatStatus(vm))
		}
		return nil
	})
}

// WaitFor waits until check succeeds. If there is no VirtualMachine, check is called with nil.
func (u *User) WaitFor(ctx context.Context, check func(*api.VirtualMachine) error) error {
	return assert.Poll(ctx, u.Name, func() error {
		attempt, cancel := context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
		vm, err := u.VMs.Get(attempt, u.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			vm, err = nil, nil
		}
		if err != nil {
			return err
		}
		return check(vm)
	})
}
