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
	printed connect.Progress
	isLost  bool  // some of the output was lost
	broken  error // the error that interrupted the log
}

// repeatEvery is the time between two tries to go on with an interrupted log, and repeats is how often that fails before
// the log is completed at the end of the run.
const (
	repeatEvery = time.Second
	repeats     = 30
)

// printLog prints the log of a run until that is over. The loss of the log is not the end of the job.
func (l *jobLog) printLog(ctx context.Context) error {
	l.printed = connect.Progress{}
	for failed, isSaid := 0, false; failed < repeats; failed++ {
		before := l.printed
		if l.broken = l.copyLog(ctx, true); l.broken == nil {
			return nil
		}
		if err := l.stopReason(ctx); err != nil {
			return err
		}
		if !mayRepeat(l.broken) {
			return nil
		}
		if l.printed != before {
			failed = 0
		}
		if !isSaid {
			isSaid = true
			l.PrintWarning(fmt.Sprintf("the log was interrupted, and goes on as soon as it can be read again: %s", l.DescribeError(l.broken)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(repeatEvery):
		}
	}
	return nil
}

// mayRepeat reports whether a log may go on once it is opened again: the connection was lost, or the server is not there
// for the moment.
func mayRepeat(err error) bool {
	switch streams.EndReason(err) {
	case "", metav1.StatusReasonTimeout, metav1.StatusReasonServiceUnavailable:
	default:
		return false
	}
	status := apierrors.APIStatus(nil)
	return !errors.As(streams.Cause(err), &status) || status.Status().Code >= http.StatusInternalServerError
}

// printMissing prints what is missing of an interrupted log. It fails if that cannot be done, or output was lost.
func (l *jobLog) printMissing(ctx context.Context) error {
	if l.broken != nil {
		l.broken = l.copyLog(ctx, false)
	}
	if stopped := l.stopReason(ctx); stopped != nil {
		return stopped
	}
	switch {
	case l.broken != nil:
		return &kit.ExitError{Code: exitNotRun, Err: fmt.Errorf("the end of the log is missing: %s", l.DescribeError(l.broken))}
	case l.isLost:
		return &kit.ExitError{Code: exitNotRun}
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

// copyLog prints what is not printed yet of the log. It says what is lost, and goes on behind it.
func (l *jobLog) copyLog(ctx context.Context, follow bool) error {
	for {
		from, err := vms.FindTarget(ctx, l.Options, l.vm, streamsapi.Log)
		if err != nil {
			return err
		}
		err = connect.CopyLog(ctx, from, l.Out, l.ErrOut, connect.LogQuery{Follow: follow, Tail: -1}, &l.printed)
		if streams.EndReason(err) != streamsapi.ReasonOutputLost {
			return from.WrapError(ctx, err)
		}
		stdout, stderr, badMessage := streamsapi.ParseLostOutput(streams.Cause(err).Error())
		if badMessage != nil {
			return badMessage
		}
		l.isLost = true
		l.printed.Stdout += stdout
		l.printed.Stderr += stderr
		l.PrintWarning(streams.Cause(err).Error())
	}
}
