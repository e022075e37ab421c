// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// Target is a VM and a client for its streams.
type Target struct {
	options         *kit.Options
	Client          *streams.Client
	Namespace, Name string
	// VM is the VM, or VMErr the error of reading it. Both are nil for the stream Decisions, which does not need
	// the VM.
	VM    *api.VirtualMachine
	VMErr error
}

// FindTarget returns the VM that an argument names, with a client for one of its streams.
func FindTarget(ctx context.Context, o *kit.Options, arg string, s streamsapi.Stream) (t Target, err error) {
	t.options = o
	if t.Name, err = ParseName(arg); err != nil {
		return t, err
	}
	if t.Namespace, err = o.Namespace(); err != nil {
		return t, err
	}
	config, err := o.RESTConfig()
	if err != nil {
		return t, err
	}
	if s != streamsapi.Decisions {
		t.VM, t.VMErr = GetVM(ctx, o, t.Namespace, t.Name)
	}
	t.Client, err = streams.Discover(ctx, config)
	if t.VM == nil || t.VM.Status.Driver != DriverPod || (err == nil && t.Client.Serves(DriverPod)) {
		return t, err
	}
	discoverErr := err
	if t.Client, err = newPodClient(o.Program, config, t.VM, s); err != nil && discoverErr != nil && !apierrors.IsNotFound(discoverErr) {
		err = discoverErr // Drover may serve the stream if the user changes something, such as --as
	}
	return t, err
}

// newPodClient returns a client for a stream of a pod, for a VM whose streams Drover does not serve. The API server
// serves the streams that every container has. For other streams, the error says what to do instead.
func newPodClient(program string, config *rest.Config, vm *api.VirtualMachine, s streamsapi.Stream) (*streams.Client, error) {
	n := slices.IndexFunc(vm.Status.Objects, func(o api.ServerObject) bool { return o.Kind == "Pod" })
	if n < 0 {
		return nil, fmt.Errorf("the pod of %s does not exist yet, to see why: %s explain %s", vm.Name, program, vm.Name)
	}
	switch s {
	case streamsapi.Console, streamsapi.Log, streamsapi.PortForward:
		return streams.ForPod(config, vm.Status.Objects[n].Name)
	case streamsapi.Interfaces:
		return nil, fmt.Errorf("%s is a pod, and Drover asks the guest of a pod for its interfaces only if drover-controller runs with --pod-streams. The ports of the pod are at %s. Its console may show more:\n  %s console %s",
			vm.Name, cmp.Or(strings.Join(vm.Status.Addresses, ", "), "no address now"), program, vm.Name)
	default:
		return nil, fmt.Errorf("%s is a pod, and Drover runs commands in the guest of a pod only if drover-controller runs with --pod-streams. Log in with %s ssh %s, or at the console:\n  %s console %s",
			vm.Name, program, vm.Name, program, vm.Name)
	}
}

// The exit codes that shells have for commands that cannot be started.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// WrapError returns the server's error for a stream, or a kit.ExitError with the exit code of a command.
func (t Target) WrapError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	var exit exec.CodeExitError
	status, cause := apierrors.APIStatus(nil), streams.Cause(err)
	isStatus := errors.As(cause, &status)
	switch reason := streams.EndReason(err); {
	case errors.As(err, &exit):
		return &kit.ExitError{Code: exit.Code}
	case reason == streamsapi.ReasonCommandNotFound:
		return &kit.ExitError{Code: exitNotFound, Err: cause}
	case reason == streamsapi.ReasonCommandNotExecutable:
		return &kit.ExitError{Code: exitNotExecutable, Err: cause}
	case apierrors.IsNotFound(cause) && isStatus && status.Status().Details != nil:
		return &notFoundError{namespace: t.Namespace, name: t.Name}
	case apierrors.IsConflict(cause), reason == metav1.StatusReasonConflict:
		return t.addAdvice(ctx, cause)
	}
	return cause
}

// addAdvice adds the next step to the error of a server that does not accept streams, if the VM's status shows it.
func (t Target) addAdvice(ctx context.Context, cause error) error {
	vm, err := GetVM(ctx, t.options, t.Namespace, t.Name)
	if err != nil {
		return cause
	}
	if off := CheckPower(t.options.Program, vm); off != nil {
		return fmt.Errorf("%w; %w", cause, off)
	}
	if !IsReady(vm) {
		return fmt.Errorf("%w; to see why: %s explain %s", cause, t.options.Program, t.Name)
	}
	return cause
}

// OpenStream opens a stream that is only read.
func (t Target) OpenStream(ctx context.Context, s streamsapi.Stream, query url.Values) (io.ReadCloser, error) {
	return t.Client.Get(ctx, t.Namespace, t.Name, s, query)
}

// CopyStream copies a read-only stream over a WebSocket, which separates standard output from standard error. It returns
// streams.ErrNoWebSocket if the server only sends the stream as a plain response.
func (t Target) CopyStream(ctx context.Context, s streamsapi.Stream, query url.Values, o remotecommand.StreamOptions) error {
	return t.Client.TryWebSocket(ctx, t.Client.URL(t.Namespace, t.Name, s, query), o)
}

// RunCommand runs a command in the VM. query has the parameters of the stream exec: the command and its streams.
func (t Target) RunCommand(ctx context.Context, query url.Values, o remotecommand.StreamOptions) error {
	return t.Client.Connect(ctx, t.Client.URL(t.Namespace, t.Name, streamsapi.Exec, query), o)
}

// CheckPower returns an error if the VM is stopped or paused because its spec says so.
func CheckPower(program string, vm *api.VirtualMachine) error {
	switch {
	case vm.Spec.Action == api.ActionStopped && vm.Status.Phase == api.PhaseStopped:
		return fmt.Errorf("%s is stopped, to start it: %s start %s", vm.Name, program, vm.Name)
	case vm.Spec.Action == api.ActionPaused && vm.Status.Phase == api.PhasePaused:
		return fmt.Errorf("%s is paused, to resume it: %s resume %s", vm.Name, program, vm.Name)
	}
	return nil
}
