// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	client "cloudnative.tw/drover/client/clientset/versioned/typed/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

const (
	// watchTime is how long one watch lasts before the list is read again, in seconds.
	watchTime = 240
	// firstRetry and lastRetry bound the wait before an API server that does not answer is
	// asked again.
	firstRetry = 500 * time.Millisecond
	lastRetry  = 8 * time.Second
)

// observer is told about VMs. Both functions report whether they need no further news.
type observer struct {
	// onList gets the complete list, at the beginning and whenever a watch has ended.
	onList func([]api.VirtualMachine) bool
	// onEvent gets a VM that was added, changed or deleted.
	onEvent func(kind watch.EventType, vm *api.VirtualMachine) bool
}

// follower lists and watches VMs until its observer needs no further news. It goes on when an API
// server has restarted.
type follower struct {
	clock clock.Clock
	opts  metav1.ListOptions
	observer
	list, watch client.VirtualMachineInterface
}

// followVMs tells an observer about the VMs of a namespace, or of all with "", until it needs no
// further news or ctx ends. The cluster has answered before, so no failure of it is final.
func followVMs(ctx context.Context, o *kit.Options, namespace string, opts metav1.ListOptions, to observer) (err error) {
	f := &follower{clock: o.Clock, opts: opts, observer: to}
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
		enough, err := f.listAndWatch(ctx)
		switch {
		case enough:
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

// isTransient reports whether a request may succeed later: the API server did not answer, or
// said so.
func isTransient(err error) bool {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		code := status.Status().Code
		return code == 429 || code >= 500 || code == 410
	}
	failed := (*url.Error)(nil)
	return errors.As(err, &failed)
}

// listAndWatch lists once, and watches until the watch ends.
func (f *follower) listAndWatch(ctx context.Context) (enough bool, err error) {
	list, err := f.list.List(ctx, f.opts)
	if err != nil {
		return false, err
	}
	if f.onList(list.Items) {
		return true, nil
	}
	opts := f.opts
	opts.ResourceVersion, opts.TimeoutSeconds, opts.AllowWatchBookmarks = list.ResourceVersion, ptr.To[int64](watchTime), true
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

// selectName selects the VM of a name.
func selectName(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
}

// ErrTimeout means that --timeout is over.
var ErrTimeout = errors.New("timed out")

// causeOf returns why a context has ended: context.Canceled after Ctrl-C, or ErrTimeout.
func causeOf(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return context.Cause(ctx)
}

// withTimeout limits a wait to --timeout, of which 0 means no limit.
func withTimeout(ctx context.Context, within time.Duration) (context.Context, context.CancelFunc) {
	if within <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, within, fmt.Errorf("%w after %s", ErrTimeout, within))
}
