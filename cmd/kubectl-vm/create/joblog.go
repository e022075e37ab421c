// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/connect"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// whenRun returns the goal that a VM runs, in another run than earlierRun, or that it has ended and is not started again.
func whenRun(generation int64, earlierRun string) vms.Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		isUp := vm.Status.Phase == api.PhaseActive && vm.Status.Server != nil && vm.Status.Server.Terminated == nil
		switch {
		case vm.DeletionTimestamp != nil:
			return false, vms.ErrDeleted
		case vm.Status.ObservedGeneration < generation:
			return false, nil
		case hasEnded(vm):
			return true, nil
		case vms.IsStalled(vm), lacksImage(vm):
			return false, fmt.Errorf("%w: %s: %s", vms.ErrStalled, vm.Status.Reason, printable.Line(vm.Status.Message))
		}
		return isUp && runOf(vm) != "" && runOf(vm) != earlierRun, nil
	}
}

// imageTries is how often Drover may fail to get the image until run gives up: a registry may be away for a moment.
const imageTries = 3

// lacksImage reports whether the image cannot be had: its tag is absent, or not for this processor, or its registry does
// not answer. Drover tries on.
func lacksImage(vm *api.VirtualMachine) bool {
	operation := vm.Status.Operation
	return operation != nil && operation.Reason == api.ReasonImageUnavailable && operation.Attempts >= imageTries
}

// hasEnded reports whether the last run of a VM has ended, and Drover does not start another.
func hasEnded(vm *api.VirtualMachine) bool {
	isOff := vm.Status.Phase == api.PhaseStopped || (vm.Status.Phase == api.PhaseFailed && vm.Status.Reason == api.ReasonExited)
	return isOff && vm.Status.Server != nil && vm.Status.Server.Terminated != nil
}

// runOf returns the last run of a VM that the controller saw running.
func runOf(vm *api.VirtualMachine) string {
	if vm.Status.Server == nil {
		return ""
	}
	return vm.Status.Server.Run
}

// jobLog prints the log of a VM while its job runs.
type jobLog struct {
	*kit.Options
	vm           string
	run          string // the run of the VM to which the log belongs
	printed      connect.Progress
	isLost       bool  // some of the output was lost
	interruption error // the error that has interrupted the log
}

// retryPeriod is the time between two tries to continue an interrupted log. After maxRetries failures in a row, the rest
// of the log is printed at the end of the run.
const (
	retryPeriod = time.Second
	maxRetries  = 30
)

// printLog prints the log of a run until the run ends. If the log cannot be continued, it returns nil, since the job may
// still run: printMissing prints the rest.
func (l *jobLog) printLog(ctx context.Context) error {
	l.printed = connect.Progress{}
	for failures, hasWarned := 0, false; failures < maxRetries; failures++ {
		before := l.printed
		if l.interruption = l.copyLog(ctx, true); l.interruption == nil {
			return nil
		}
		if err := l.stopReason(ctx); err != nil {
			return err
		}
		if !mayContinue(l.interruption) {
			return nil
		}
		if l.printed != before {
			failures = 0
		}
		if !hasWarned {
			hasWarned = true
			l.PrintWarning(fmt.Sprintf("the log was interrupted, and goes on as soon as it can be read again: %s", l.DescribeError(l.interruption)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retryPeriod):
		}
	}
	return nil
}

// mayContinue reports whether a log may continue once it is opened again: the connection was lost, or the server is
// temporarily unavailable.
func mayContinue(err error) bool {
	switch streams.EndReason(err) {
	case "", metav1.StatusReasonTimeout, metav1.StatusReasonServiceUnavailable:
	default:
		return false
	}
	status := apierrors.APIStatus(nil)
	return !errors.As(streams.Cause(err), &status) || status.Status().Code >= http.StatusInternalServerError
}

// printMissing prints the rest of an interrupted log. It returns an error if it cannot, or if output was lost.
func (l *jobLog) printMissing(ctx context.Context) error {
	if l.interruption != nil {
		l.interruption = l.copyLog(ctx, false)
	}
	if stopped := l.stopReason(ctx); stopped != nil {
		return stopped
	}
	switch {
	case l.interruption != nil:
		return &kit.ExitError{Code: exitRunFailed, Err: fmt.Errorf("the end of the log is missing: %s", l.DescribeError(l.interruption))}
	case l.isLost:
		return &kit.ExitError{Code: exitRunFailed}
	}
	return nil
}

// stopReason returns an error if the user, or the reader of the output, has ended the log.
func (l *jobLog) stopReason(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return printable.NewOutput(l.Out).Err()
}

// copyLog prints the part of the log that is not printed yet. If output was lost, it prints a warning and continues after
// the lost output.
func (l *jobLog) copyLog(ctx context.Context, follow bool) error {
	for {
		target, err := vms.FindTarget(ctx, l.Options, l.vm, streamsapi.Log)
		if err != nil {
			return err
		}
		err = connect.CopyLog(ctx, target, l.Out, l.ErrOut, connect.LogQuery{Follow: follow, Tail: -1}, &l.printed)
		if streams.EndReason(err) != streamsapi.ReasonOutputLost {
			return target.WrapError(ctx, err)
		}
		stdout, stderr, parseErr := streamsapi.ParseLostOutput(streams.Cause(err).Error())
		if parseErr != nil {
			return parseErr
		}
		l.isLost = true
		l.printed.Stdout += stdout
		l.printed.Stderr += stderr
		l.PrintWarning(streams.Cause(err).Error())
	}
}
