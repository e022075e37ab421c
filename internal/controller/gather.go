// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// observation is the known state of a VirtualMachine's server. It is live if it comes
// from a query of the engine, after which nothing was done.
type observation struct {
	inventory.Observation
	live bool
}

// gatherFacts combines the VirtualMachine, the inventory's answer, and the work that an earlier pass
// could not report. before is the VirtualMachine before this pass has bound it, or vm itself if this pass
// did not have to bind it. A status that was copied from another object counts as empty.
func (r *Reconciler) gatherFacts(ctx context.Context, before, vm *api.VirtualMachine) facts {
	written := before != vm
	if policy.IsStatusCopied(vm) {
		vm = vm.DeepCopy()
		vm.Status = api.VirtualMachineStatus{}
	}
	f := facts{base: vm, vm: vm.DeepCopy(), baseLive: written}
	if r.Inventory != nil {
		r.Inventory.BeginEpoch(r.Epoch())
	}
	f.observed.Observation = r.observeServer(vm)
	if f.isDoubtful(r.Inventory) {
		_ = f.observeLive(ctx, r.Inventory) // the observation has the error
	}
	// The answer is older than vm, so it cannot confirm a step and does not count as live. The exception is the
	// first binding: no server can exist before it.
	f.observed.live = written && !policy.IsBound(before) && f.observed.Answer == inventory.Gone && vm.Status.ObservedGeneration < 1
	if left := r.findUnreported(vm); left != nil {
		f.vm.Status, f.events, f.unreported = *left.status.DeepCopy(), left.events, true
	} else {
		f.detectEnd()
	}
	f.files = r.files.Check(f.base, f.observed.Observation) //nolint:contextcheck // the work outlives the pass
	if op := vm.Status.Operation; op != nil {
		f.began = op.Type
	}
	if f.vm.Status.Server != nil {
		f.wasStarting = f.vm.Status.Server.State == string(driver.StateStarting)
		f.passedGeneration = f.vm.Status.Server.Generation
	}
	if f.observed.Server.State == driver.StateStopped && policy.IsStoppedByDrover(translate.Status(&f.vm.Status), f.observed.Server.Run) {
		f.stoppedRun = f.observed.Server.Run
	}
	return f
}

// observeServer returns the inventory's answer about a VirtualMachine's server.
func (r *Reconciler) observeServer(vm *api.VirtualMachine) inventory.Observation {
	if r.Inventory == nil {
		return inventory.Observation{}
	}
	return r.Inventory.Get(vm.UID)
}

// observeCached updates the observation from the inventory's cache.
func (s *step) observeCached() {
	s.observed = observation{Observation: s.r.observeServer(s.vm)}
}

// isDoubtful reports whether the inventory's answer differs from the status and is older than
// this leadership, so that the status may be newer than the answer.
func (f *facts) isDoubtful(inv *inventory.Inventory) bool {
	observed := f.observed.Observation
	if inv == nil || observed.Answer == inventory.Unknown || policy.IsOtherEngine(policy.BindingOf(f.vm), observed.EngineID) {
		return false
	}
	return inv.IsOld(f.vm.UID) && !translate.IsAsReported(f.vm, observed)
}

// observeLive updates the observation by querying the engine. If the engine does not
// answer, the server counts as unknown.
func (f *facts) observeLive(ctx context.Context, inv *inventory.Inventory) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	observed, err := inv.GetLive(ctx, f.vm.UID)
	f.observed = observation{observed, err == nil}
	return err
}

// ensureLive queries the engine unless the observation is live already.
func (s *step) ensureLive(ctx context.Context) error {
	if s.observed.live || s.r.Inventory == nil {
		return nil
	}
	return s.observeLive(ctx, s.r.Inventory)
}

// observeOutcome updates the observation after an action. After anything but a
// clear success it asks the engine which server exists now. It returns the action's
// error or, if a removal cannot be confirmed, the error of the query.
func (s *step) observeOutcome(ctx context.Context, err error) error {
	if err == nil && s.decision.Action.Step != policy.StepDelete {
		s.observeCached()
		return nil
	}
	if queryErr := s.observeLive(ctx, s.r.Inventory); err == nil {
		return queryErr
	}
	return err
}

// confirmDecision verifies with live reads the facts that the decided step depends on. Caches may
// lag behind users and behind the previous leader, which may have created or deleted
// the server or removed the finalizer. If confirmed is false, the pass decides again.
func (s *step) confirmDecision(ctx context.Context) (confirmed bool, err error) {
	switch action := s.decision.Action; {
	case action.Step == policy.StepFinish:
		return s.confirmGone(ctx), nil
	case action.RecordFirst:
		return s.confirmRun(ctx) // the write that follows confirms the object
	case action.Step == policy.StepEnsure && (action.Operation == api.OperationCreate || s.observed.Answer == inventory.Gone):
		if err := s.confirmObject(ctx); err != nil {
			return false, err
		}
		return s.confirmCreation(ctx), nil
	}
	return true, s.confirmObject(ctx)
}

// confirmObject verifies that the object is as the pass has it. Once is enough,
// since later writes fail with a conflict.
func (s *step) confirmObject(ctx context.Context) error {
	if s.baseLive {
		return nil
	}
	if err := s.r.Client.Confirm(ctx, s.base); err != nil {
		return err
	}
	s.baseLive = true
	return nil
}

// confirmCreation verifies that there is no server. If there is one, which may be
// waiting for its image, the pass decides again, from a live observation.
func (s *step) confirmCreation(ctx context.Context) bool {
	if s.observed.live && s.observed.Answer == inventory.Present {
		return true
	}
	err := s.ensureLive(ctx)
	if err == nil && s.observed.Answer == inventory.Gone {
		err = s.r.checkOtherDrivers(s.vm)
	}
	if err != nil {
		s.recordFailure(err)
	}
	return err == nil && s.observed.Answer == inventory.Gone
}

// confirmRun verifies that the run that a restart must end is the current one: an
// older one would count as ended already. It returns an error if the engine does not
// answer, since recording a failure would also record the run.
func (s *step) confirmRun(ctx context.Context) (confirmed bool, err error) {
	if err := s.ensureLive(ctx); err != nil {
		return false, err
	}
	return s.observed.Answer == inventory.Present && s.observed.Server.Run == s.decision.Action.EndRun, nil
}

// confirmGone verifies that there is no server, so that the finalizer may be
// removed.
func (s *step) confirmGone(ctx context.Context) bool {
	if err := s.ensureLive(ctx); err != nil {
		s.recordFailure(err)
		return false
	}
	if s.observed.Answer != inventory.Gone && s.r.Inventory != nil {
		return false
	}
	if s.decision.Action.AllDrivers {
		s.deletionBlocker = s.r.queryAllDrivers(ctx, s.vm)
	}
	return s.deletionBlocker == ""
}

// checkOtherDrivers returns an error if another driver's engine is known to have a server
// of the VirtualMachine, as after a user has removed or edited the binding before the
// first status write. Drover then neither creates a server nor writes the binding to the status.
func (r *Reconciler) checkOtherDrivers(vm *api.VirtualMachine) error {
	for _, inv := range r.Inventories {
		if inv == r.Inventory {
			continue
		}
		if observed := inv.Get(vm.UID); observed.Answer == inventory.Present {
			return driver.WithReason(api.ReasonEngineMismatch, driver.Errorf(driver.ErrRetry,
				"driver %s has the server %s of this VirtualMachine: set the annotation %s to %s, or remove that server",
				inv.Name, observed.Server.ID, api.AnnotationBound, policy.AnnotationOf(api.Binding{Driver: inv.Name, EngineID: observed.EngineID, UID: vm.UID})))
		}
	}
	return nil
}

// queryAllDrivers asks every driver live for the server of a VirtualMachine whose binding
// is lost. It returns why the server may still exist, or "" if no driver has it.
func (r *Reconciler) queryAllDrivers(ctx context.Context, vm *api.VirtualMachine) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, inv := range r.Inventories {
		observed, err := inv.GetLive(ctx, vm.UID)
		switch {
		case err != nil:
			return deletionBlockerText(vm, fmt.Sprintf("driver %s did not answer whether it has a server: %v", inv.Name, err))
		case observed.Answer == inventory.Present:
			return deletionBlockerText(vm, fmt.Sprintf("driver %s has the server %s", inv.Name, observed.Server.ID))
		case observed.Answer != inventory.Gone || r.Clock.Now().Before(observed.SettlesAt):
			return deletionBlockerText(vm, fmt.Sprintf("driver %s cannot answer yet whether it has a server", inv.Name))
		}
	}
	return ""
}

func deletionBlockerText(vm *api.VirtualMachine, cause string) string {
	return fmt.Sprintf("the annotation %s is lost or another object's, and %s: set the annotation to <driver>/<engine id>/%s, with the server's engine, or remove the finalizer %s by hand if there is no server",
		api.AnnotationBound, cause, vm.UID, api.FinalizerServer)
}

// inputOf returns the input of the next decision. The input is recorded, so it contains only the facts
// that are named here. inputOf also starts the readiness probe of a server that runs now.
func (r *Reconciler) inputOf(known facts) policy.Input {
	now := r.Clock.Now()
	probe := r.probes.Check(known.base, known.observed.Observation)
	if text := known.observed.Server.NotReady; text != "" && known.vm.Spec.ReadinessProbe == nil {
		probe = policy.ProbeResult{Wanted: true, Completed: true, Message: text}
	}
	probe.Message = translate.Truncate(probe.Message)
	return policy.Input{
		Now: now, VM: translate.VM(known.vm), Observed: translate.Observed(&known.observed.Observation),
		Driver: r.Driver, Drivers: policy.ListOf(r.Drivers...), Epoch: r.leaderEpoch(),
		Done: known.operation, PassedGeneration: known.passedGeneration, Probe: probe,
		Since: r.times.Update(known.vm, known.observed.Observation, now), DeletionBlocker: translate.Truncate(known.deletionBlocker),
	}
}
