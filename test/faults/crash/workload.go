// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

// vmName is the name of the VirtualMachine of every workload.
const vmName = "vm-1"

// outageDuration is how long an outage lasts.
const outageDuration = 300 * time.Millisecond

// crashRun is one run of a workload, with its environment, engine and replicas.
type crashRun struct {
	*lab.World
	work     workload
	engine   lab.Engine
	replicas *lab.Replicas
	injector Injector
	// disturbance names the disturbance that the test has caused, if any.
	disturbance outside.Disturbance
	// backsUp is set if the test backs up the engine after the setup.
	backsUp bool
	image   string // of new VirtualMachines; empty means the engine's default
}

// step is one request of a user, with a wait for its result.
type step func(ctx context.Context, s *crashRun) error

// workload is a sequence of users' requests. Faults occur only after the setup.
type workload struct {
	name  string
	setup []step
	act   []step
	// hasty is set if users do not wait for the creation before they delete, so that the
	// server may never be created.
	hasty bool
	// unprotected is set if users remove the finalizer.
	unprotected bool
	// moves is set if the VirtualMachine moves to the second engine of a Pair.
	moves bool
	// ends is set if the server ends by itself, which needs an engine with lab.Jobs.
	ends bool
}

// suits reports whether an engine can run the workload.
func (w workload) suits(e lab.Engine) bool {
	_, isPair := e.(Pair)
	_, hasJobs := e.(lab.Jobs)
	return isPair == w.moves && (hasJobs || !w.ends) && e.Runs(w.name)
}

// ignoreChance returns the state got. In a hasty workload it replaces the effects by the wanted ones
// if the server was created and deleted equally often.
func (w workload) ignoreChance(got, want lab.State) lab.State {
	if e := got.Effects[vmName]; w.hasty && e.Creates == e.Deletes {
		got.Effects = want.Effects
	}
	return got
}

// workloads has all workloads. Their method suits says which engines can run them.
var workloads = []workload{
	{name: "create", act: []step{create, waitApplied}},
	{name: "power", setup: created, act: []step{
		setAction(api.ActionStopped), waitApplied, setAction(api.ActionActive), waitApplied,
		setAction(api.ActionPaused), waitApplied, setAction(api.ActionActive), waitApplied,
	}},
	{name: "pause", setup: created, act: []step{setAction(api.ActionPaused), waitApplied}},
	{name: "resize", setup: created, act: []step{resize, waitApplied}},
	{name: "restart", setup: created, act: []step{restart, waitApplied}},
	{name: "replace", unprotected: true, setup: created, act: []step{replace, waitApplied}},
	{name: "delete", setup: created, act: []step{remove, waitGone}},
	{name: "create-delete", hasty: true, act: []step{create, waitBound, remove, waitGone}},
	{name: "recreate", setup: created, act: []step{remove, waitGone, create, waitApplied}},
	{name: "retain", setup: append(created, retain, waitApplied), act: []step{remove, waitGone}},
	{name: "namespace", setup: created, act: []step{removeNamespace, waitGone, waitNamespaceGone}},
	{name: "create-outage", act: []step{duringOutage(false, create), waitApplied}},
	{name: "restart-outage", setup: created, act: []step{duringOutage(false, restart), waitApplied}},
	{name: "delete-outage", setup: created, act: []step{duringOutage(false, remove), waitGone}},
	{name: "stop-exchange", setup: created, act: []step{duringOutage(true, setAction(api.ActionStopped)), waitApplied}},
	{name: "delete-exchange", setup: created, act: []step{duringOutage(true, remove), waitGone}},
	{name: "move", moves: true, setup: created, act: []step{remove, waitGone, createElsewhere, waitApplied}},
	{name: "move-outage", moves: true, setup: created, act: []step{duringOutage(false, remove), waitGone, createElsewhere, waitApplied}},
	{name: "job", ends: true, act: []step{createJob(lab.Jobs.NewJob), waitEnded}},
	{name: "files", ends: true, setup: []step{createJob(lab.Jobs.NewReader), waitApplied}, act: []step{changeSecret, waitEnded}},
	{name: "image", setup: []step{breakImage}, act: []step{create, waitFailed, repairImage, waitApplied}},
}

var created = []step{create, waitApplied}

func create(ctx context.Context, s *crashRun) error {
	vm := s.engine.NewVM(vmName)
	if s.image != "" {
		vm.Image(s.image)
	}
	return s.CreateVM(ctx, vm.Obj())
}

// createJob returns a step that creates a VirtualMachine whose command ends without a request to stop it.
func createJob(newVM func(jobs lab.Jobs, name string) *framework.VMBuilder) step {
	return func(ctx context.Context, s *crashRun) error {
		jobs, ok := s.engine.(lab.Jobs)
		if !ok {
			return errors.New("servers of this engine cannot end by themselves")
		}
		return s.CreateVM(ctx, newVM(jobs, vmName).Obj())
	}
}

func changeSecret(ctx context.Context, s *crashRun) error { return s.ChangeSecret(ctx) }

// waitEnded waits until the server has ended by itself.
func waitEnded(ctx context.Context, s *crashRun) error {
	return s.WaitVM(ctx, vmName, func(vm *api.VirtualMachine) error {
		if vm.Status.Phase != api.PhaseStopped || vm.Status.Reason != api.ReasonCompleted {
			return errors.New(framework.FormatStatus(vm))
		}
		return nil
	})
}

// createElsewhere creates a VirtualMachine with the same name for the second engine of a Pair.
func createElsewhere(ctx context.Context, s *crashRun) error {
	p, ok := s.engine.(Pair)
	if !ok {
		return errors.New("there is no second engine")
	}
	return s.CreateVM(ctx, p.Second.NewVM(vmName).Obj())
}

func remove(ctx context.Context, s *crashRun) error { return s.DeleteVM(ctx, vmName) }

func waitApplied(ctx context.Context, s *crashRun) error {
	return s.WaitVM(ctx, vmName, users.CheckApplied)
}

// waitBound waits until Drover has added its finalizer, and is about to create the
// server.
func waitBound(ctx context.Context, s *crashRun) error {
	return s.WaitVM(ctx, vmName, func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(len(vm.Finalizers) != 0, "it lacks the finalizer")
	})
}

func waitGone(ctx context.Context, s *crashRun) error { return s.WaitGone(ctx, vmName) }

func removeNamespace(ctx context.Context, s *crashRun) error { return s.DeleteNamespace(ctx) }

func waitNamespaceGone(ctx context.Context, s *crashRun) error { return s.WaitNamespaceGone(ctx) }

func setAction(a api.Action) step {
	return func(ctx context.Context, s *crashRun) error {
		return s.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) { vm.Spec.Action = a })
	}
}

func resize(ctx context.Context, s *crashRun) error { return s.UpdateVM(ctx, vmName, s.engine.Resize) }

// restartTime is the same in every run, because it is in the spec.
var restartTime = metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func restart(ctx context.Context, s *crashRun) error {
	return s.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = &restartTime })
}

func retain(ctx context.Context, s *crashRun) error {
	return s.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) { vm.Spec.DeletionPolicy = api.DeletionRetain })
}

// replace resizes the VirtualMachine as kubectl replace does with a user's manifest, which lacks
// Drover's finalizer and the annotation that binds the VirtualMachine to an engine.
func replace(ctx context.Context, s *crashRun) error {
	return s.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) {
		vm.Finalizers, vm.Annotations = nil, nil
		s.engine.Resize(vm)
	})
}

// duringOutage runs a step while the engine is unreachable, or replaced by another one.
func duringOutage(exchanged bool, do step) step {
	return func(ctx context.Context, s *crashRun) error {
		back, err := s.engine.Outage(ctx, s.World, exchanged)
		if err != nil {
			return err
		}
		err = do(ctx, s)
		time.Sleep(outageDuration)
		return errors.Join(err, back())
	}
}

func breakImage(ctx context.Context, s *crashRun) (err error) {
	s.image, err = s.engine.BreakImage(ctx, s.World, vmName)
	return err
}

func repairImage(ctx context.Context, s *crashRun) error {
	image, err := s.engine.RepairImage(ctx, s.World)
	if err != nil {
		return err
	}
	return s.UpdateVM(ctx, vmName, func(vm *api.VirtualMachine) { vm.Spec.Image = &api.Image{Source: image} })
}

func waitFailed(ctx context.Context, s *crashRun) error {
	return s.WaitVM(ctx, vmName, func(vm *api.VirtualMachine) error {
		if vm.Status.Operation == nil || vm.Status.Operation.Attempts == 0 {
			return errors.New("no creation has failed")
		}
		return framework.HasCondition(api.ConditionReady, metav1.ConditionFalse)(vm)
	})
}

// findWorkload returns a workload and its engine by "<workload>/<engine>".
func findWorkload(name string, engines []lab.Engine) (workload, lab.Engine, error) {
	for _, e := range engines {
		for _, w := range workloads {
			if w.name+"/"+e.Name() == name {
				return w, e, nil
			}
		}
	}
	return workload{}, nil, fmt.Errorf("there is no workload %q", name)
}
