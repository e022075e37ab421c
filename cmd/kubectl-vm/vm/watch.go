// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/net/http2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	client "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

const (
	// watchSeconds is how long one watch lasts before the list is read again.
	watchSeconds = 240
	// firstRetry and lastRetry are the shortest and the longest wait before another request
	// after one has failed.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 8 * time.Second
)

// observer has functions that are called with VMs. Both return true to end the calls.
type observer struct {
	// onList is called with the complete list, at the beginning and whenever a watch has ended.
	onList func([]api.VirtualMachine) (done bool)
	// onEvent is called with a VM that was added, changed or deleted.
	onEvent func(kind watch.EventType, vm *api.VirtualMachine) (done bool)
}

// follower lists and watches VMs until its observer is done. It continues after a restart of the API
// server.
type follower struct {
	clock clock.Clock
	opts  metav1.ListOptions
	observer
	list, watch client.VirtualMachineInterface
}

// followVMs calls an observer with the VMs of a namespace, or of all namespaces if it is "", until the
// observer is done or ctx ends. The cluster has answered before, so followVMs retries after failures.
func followVMs(ctx context.Context, o *kit.Options, namespace string, opts metav1.ListOptions, observer observer) (err error) {
	f := &follower{clock: o.Clock, opts: opts, observer: observer}
	if f.list, err = o.VMs(namespace); err != nil {
		return err
	}
	if f.watch, err = o.WatchVMs(namespace); err != nil {
		return err
	}
	return f.watchUntilDone(ctx)
}

func (f *follower) watchUntilDone(ctx context.Context) error {
	pause := time.Duration(0)
	for {
		done, err := f.listAndWatch(ctx)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return causeOf(ctx)
		case err != nil && !isTransient(err):
			return err
		case err == nil:
			pause = 0
		}
		pause = min(max(2*pause, firstRetry), lastRetry)
		select {
		case <-ctx.Done():
			return causeOf(ctx)
		case <-f.clock.After(pause):
		}
	}
}

// isTransient reports whether a request may succeed later: the API server did not answer, its answer was cut
// off, or its answer says so.
func isTransient(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		return code == 429 || code >= 500 || code == 410
	}
	_, isNetwork := errors.AsType[net.Error](err) // such as every url.Error
	_, isStream := errors.AsType[http2.StreamError](err)
	_, isGoAway := errors.AsType[http2.GoAwayError](err) //nolint:staticcheck // deprecated without a replacement, and still returned
	return isNetwork || isStream || isGoAway || errors.Is(err, io.ErrUnexpectedEOF) || utilnet.IsHTTP2ConnectionLost(err)
}

// listAndWatch lists once, and watches until the watch ends or the observer is done.
func (f *follower) listAndWatch(ctx context.Context) (done bool, err error) {
	list, err := f.list.List(ctx, f.opts)
	if err != nil {
		return false, err
	}
	if f.onList(list.Items) {
		return true, nil
	}
	opts := f.opts
	opts.ResourceVersion, opts.TimeoutSeconds, opts.AllowWatchBookmarks = list.ResourceVersion, ptr.To[int64](watchSeconds), true
	w, err := f.watch.Watch(ctx, opts)
	if err != nil {
		return false, err
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		vm, ok := event.Object.(*api.VirtualMachine)
		if !ok {
			return false, apierrors.FromObject(event.Object)
		}
		if event.Type != watch.Bookmark && f.onEvent(event.Type, vm) {
			return true, nil
		}
	}
	return false, nil
}

// selectName returns the options that select the VM with a name.
func selectName(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// ErrTimeout means that a wait took longer than --timeout.
var ErrTimeout = errors.New("timed out")

// causeOf returns why a context has ended: context.Canceled after Ctrl-C, or ErrTimeout.
func causeOf(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return context.Cause(ctx)
}

// withTimeout limits a wait to timeout, where 0 means no limit.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	if timeout <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("%w after %s", ErrTimeout, timeout))
}
