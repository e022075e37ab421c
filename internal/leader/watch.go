// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// rewatchDelay is the delay before a watch that ended is reopened.
	rewatchDelay = 250 * time.Millisecond
	// watchTimeoutSeconds is the timeout of a watch at the API server.
	watchTimeoutSeconds = 300
)

// errSilent means that no event came within a Lease duration. A held Lease changes more
// often, so the connection may be dead.
var errSilent = errors.New("no event came for as long as a Lease lasts: its holder has ended, or the connection is dead")

// Watch follows the Lease until ctx ends. It must run while this process may lead,
// including while it stops.
func (l *Lock) Watch(ctx context.Context) {
	if l.opts.Claims != nil {
		go l.claim.keepTerm(ctx)
	}
	pause, reported := rewatchDelay, false
	for ctx.Err() == nil {
		began := l.opts.Boot()
		err := l.lease.listAndWatch(ctx)
		lasted := l.opts.Boot() - began
		if lasted > l.opts.Settings.Retry {
			pause = rewatchDelay
		}
		if lasted > l.opts.Settings.Lease { // a shorter watch may be one that failed slowly
			reported = false
		}
		if err != nil && ctx.Err() == nil && !reported {
			l.opts.Log.Info("The Lease cannot be watched, so a release may be observed late", "lease", l.Describe(), "cause", err.Error())
			reported = true
		}
		_ = l.lease.waitFor(ctx, nil, pause)
		pause = min(2*pause, max(rewatchDelay, l.opts.Settings.Retry))
	}
}

func (v *view) listAndWatch(ctx context.Context) error {
	from, err := v.listLease(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := v.opts.Clock.AfterFunc(v.opts.Settings.Lease, func() { cancel(errSilent) })
	defer silence.Stop()
	opts := v.nameSelector()
	opts.ResourceVersion, opts.TimeoutSeconds = from, new(int64(watchTimeoutSeconds))
	w, err := v.opts.Leases.Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case event, open := <-w.ResultChan():
			if !open {
				return nil
			}
			silence.Reset(v.opts.Settings.Lease)
			if err := v.observeEvent(event); err != nil {
				return err
			}
		}
	}
}

func (v *view) nameSelector() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, v.opts.Name).String()}
}

// listLease returns the resourceVersion to watch from.
func (v *view) listLease(ctx context.Context) (resourceVersion string, err error) {
	v.mu.Lock()
	before := v.observed.version
	v.mu.Unlock()
	ctx, cancel := withTimeout(ctx, v.opts.Settings.RequestTimeout())
	defer cancel()
	all, err := v.opts.Leases.List(ctx, v.nameSelector())
	if err != nil {
		return "", nameTimeout(ctx, err)
	}
	version, err := parseVersion(all.ResourceVersion)
	if err != nil {
		return "", err
	}
	var lease *coordinationv1.Lease
	if len(all.Items) > 0 {
		lease = &all.Items[0]
		if version, err = versionOf(lease); err != nil {
			return "", err
		}
	}
	v.recordObservation(func(s *observedLease, now time.Duration) bool {
		return s.updateLive(lease, version, before, now, v.opts.Settings.Lease)
	})
	return all.ResourceVersion, nil
}

func (v *view) observeEvent(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	lease, ok := e.Object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("the watch of the Lease sent a %T", e.Object)
	}
	if lease.Name != v.opts.Name {
		return errors.New("the watch of the Lease sent another Lease")
	}
	version, err := versionOf(lease)
	if err != nil {
		return err
	}
	if e.Type == watch.Deleted {
		lease = nil
	}
	v.recordObservation(v.updateWith(lease, version))
	return nil
}
