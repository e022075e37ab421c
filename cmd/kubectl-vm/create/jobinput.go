// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"errors"
	"fmt"
	"time"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/connect"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// errLeft means that the user has typed Ctrl-], which detaches from the VM.
var errLeft = errors.New("the user has left")

// endWithin limits the wait for the end of a job after the connection for its input has ended.
const endWithin = 15 * time.Second

// jobInput sends the user's input and the sizes of the terminal to a VM.
type jobInput struct {
	options   *runOptions
	end       context.CancelCauseFunc // ends the job if the user leaves, or input may be lost
	cause     func() error            // why end was called
	interrupt context.CancelFunc
	over      chan struct{} // closed after all input has been sent
}

// newInput returns a jobInput, whose stop must be called, and a context that is also canceled if the jobInput ends the job.
func (r *runOptions) newInput(ctx context.Context) (context.Context, *jobInput) {
	ctx, end := context.WithCancelCause(ctx)
	i := &jobInput{options: r, end: end, cause: func() error { return context.Cause(ctx) }, interrupt: func() {}, over: make(chan struct{})}
	close(i.over)
	return ctx, i
}

// start begins to send input to a running VM.
func (i *jobInput) start(ctx context.Context, name string) {
	if !i.options.flags.Stdin && !i.options.flags.TTY {
		return
	}
	ctx, i.interrupt = context.WithCancel(ctx)
	i.over = make(chan struct{})
	go func() {
		defer close(i.over)
		err := i.sendInput(ctx, name)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !errors.Is(err, errLeft) {
			select {
			case <-ctx.Done():
				return
			case <-i.options.Clock.After(endWithin):
			}
		}
		i.end(err)
	}()
}

// stop stops sending, and restores the terminal. It returns the cause if the jobInput has ended the job,
// otherwise err.
func (i *jobInput) stop(err error) error {
	i.interrupt()
	<-i.over
	if cause := i.cause(); errors.Is(err, context.Canceled) && cause != nil {
		err = cause
	}
	i.end(nil)
	return err
}

// sendInput sends input and terminal sizes until the VM has stopped. Its error is errLeft, or tells why input may not
// have been sent.
func (i *jobInput) sendInput(ctx context.Context, name string) error {
	target, err := vms.FindTarget(ctx, i.options.Options, name, streamsapi.Console)
	if err != nil {
		return err
	}
	session := connect.NewSession(i.options.Options, target)
	session.InputOnly, session.ReadOnly = true, !i.options.flags.Stdin
	switch {
	case i.options.flags.TTY && i.options.flags.Stdin:
		session.Terminal = streams.OpenInput(i.options.In)
	case i.options.flags.TTY:
		session.Terminal = streams.OpenTerminal(i.options.In, i.options.Out)
	}
	err = target.WrapError(ctx, session.Run(ctx))
	switch {
	case session.HasLeft():
		return errLeft
	case err == nil || !i.options.flags.Stdin:
		return nil
	}
	return &kit.ExitError{Code: exitRunFailed, Err: fmt.Errorf("some of the input may be lost: %s", i.options.DescribeError(err))}
}
