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
	// watchAgain is the delay before a watch that ended is reopened.
	watchAgain = 250 * time.Millisecond
	// watchSeconds is the timeout of a watch at the API server.
	watchSeconds = 300
)

// errSilent means that no event came in a Lease duration. A Lease that is held
// changes more often, so the connection may be dead.
var errSilent = errors.New("nothing was heard for as long as a Lease lasts")

// Watch follows the Lease until ctx ends. It must run while this process may lead,
// including while it stops.
func (l *Lock) Watch(ctx context.Context) {
	if l.o.Claims != nil {
		go l.keepClaim(ctx)
	}
	pause, told := watchAgain, false
	for ctx.Err() == nil {
		began := l.o.Boot()
		err := l.follow(ctx)
		if l.o.Boot()-began > l.o.Settings.Retry {
			pause, told = watchAgain, false
		}
		if err != nil && ctx.Err() == nil && !told {
			l.o.Log.Info("The Lease cannot be watched, so a release may be seen late", "lease", l.Describe(), "cause", err.Error())
			told = true
		}
		_ = l.pause(ctx, nil, pause)
		pause = min(2*pause, max(watchAgain, l.o.Settings.Retry))
	}
}

func (l *Lock) follow(ctx context.Context) error {
	from, err := l.list(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := l.o.Clock.AfterFunc(l.o.Settings.Lease, func() { cancel(errSilent) })
	defer silence.Stop()
	opts := l.selector()
	opts.ResourceVersion, opts.TimeoutSeconds = from, new(int64(watchSeconds))
	w, err := l.o.Leases.Watch(ctx, opts)
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
			silence.Reset(l.o.Settings.Lease)
			if err := l.event(event); err != nil {
				return err
			}
		}
	}
}

func (l *Lock) selector() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, l.o.Name).String()}
}

// list returns the resourceVersion to watch from.
func (l *Lock) list(ctx context.Context) (from string, err error) {
	l.mu.Lock()
	asked := l.sight.version
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.o.Settings.Request)
	defer cancel()
	all, err := l.o.Leases.List(ctx, l.selector())
	if err != nil {
		return "", err
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
	l.see(func(s *observedLease, now time.Duration) bool {
		return s.seeLive(lease, version, asked, now, l.o.Settings.Lease)
	})
	return all.ResourceVersion, nil
}

func (l *Lock) event(e watch.Event) error {
	if e.Type == watch.Error {
		return apierrors.FromObject(e.Object)
	}
	lease, ok := e.Object.(*coordinationv1.Lease)
	if !ok {
		return fmt.Errorf("the watch of the Lease sent a %T", e.Object)
	}
	if lease.Name != l.o.Name {
		return errors.New("the watch of the Lease sent another one")
	}
	version, err := versionOf(lease)
	if err != nil {
		return err
	}
	if e.Type == watch.Deleted {
		lease = nil
	}
	l.see(l.newer(lease, version))
	return nil
}
