// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"fmt"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/connect"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// whenRun awaits that a VM runs, in another run than the one that is known, or has ended and is not started again.
func whenRun(generation int64, known string) vms.Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		isUp := vm.Status.Phase == api.PhaseActive && vm.Status.Server != nil && vm.Status.Server.Terminated == nil
		switch {
		case vm.DeletionTimestamp != nil:
			return false, vms.ErrDeleted
		case vm.Status.ObservedGeneration < generation:
			return false, nil
		case hasEnded(vm):
			return true, nil
		case vms.IsStalled(vm):
			return false, fmt.Errorf("%w: %s: %s", vms.ErrStalled, vm.Status.Reason, printable.Line(vm.Status.Message))
		}
		return isUp && runOf(vm) != "" && runOf(vm) != known, nil
	}
}

// hasEnded reports whether the run of a VM is over, and Drover starts none after it.
func hasEnded(vm *api.VirtualMachine) bool {
	isOff := vm.Status.Phase == api.PhaseStopped || (vm.Status.Phase == api.PhaseFailed && vm.Status.Reason == api.ReasonExited)
	return isOff && vm.Status.Server != nil && vm.Status.Server.Terminated != nil
}

// runOf returns the last run of a VM that was seen to run.
func runOf(vm *api.VirtualMachine) string {
	if vm.Status.Server == nil {
		return ""
	}
	return vm.Status.Server.Run
}

// jobLog prints the log of a VM as it comes.
type jobLog struct {
	*kit.Options
	vm      string
	run     string // the run of the VM to which the log belongs
	printed int64  // number of bytes of the log that are printed
	lost    error  // the error that interrupted the log
}

// printLog prints the log of a run until that is over. The loss of the log is not the end of the job.
func (l *jobLog) printLog(ctx context.Context) error {
	l.printed = 0
	if l.lost = l.copyLog(ctx, true); l.lost == nil {
		return nil
	}
	if err := l.stopReason(ctx); err != nil {
		return err
	}
	l.PrintWarning(fmt.Sprintf("the log was interrupted, and is completed at the end: %s", l.DescribeError(l.lost)))
	return nil
}

// printMissing prints what is missing of an interrupted log.
func (l *jobLog) printMissing(ctx context.Context) error {
	if l.lost == nil {
		return nil
	}
	err := l.copyLog(ctx, false)
	if err == nil {
		return nil
	}
	if stopped := l.stopReason(ctx); stopped != nil {
		return stopped
	}
	l.PrintWarning(fmt.Sprintf("the end of the log is missing: %s", l.DescribeError(err)))
	return nil
}

// stopReason returns an error if the user, or the reader of the output, has ended the log.
func (l *jobLog) stopReason(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return printable.NewOutput(l.Out).Err()
}

// copyLog prints what is not printed yet of the log.
func (l *jobLog) copyLog(ctx context.Context, follow bool) error {
	from, err := vms.FindTarget(ctx, l.Options, l.vm, streamsapi.Log)
	if err != nil {
		return err
	}
	n, err := connect.CopyLog(ctx, l.Out, from, connect.LogQuery{Follow: follow, Tail: -1}, l.printed)
	l.printed += n
	return err
}
