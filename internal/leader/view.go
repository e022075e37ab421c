// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// view is the Lease as one replica sees it, by a watch and by live reads. It also writes the Lease.
type view struct {
	opts *Options
	// onObserved is called after each observation, with mu locked. before is the previous holder.
	onObserved func(before string, observed *observedLease)

	mu       sync.Mutex
	observed observedLease
	changed  chan struct{} // closed when observed changes
}

// readLease reads the Lease live from the API.
func (v *view) readLease(ctx context.Context) error {
	v.mu.Lock()
	before := v.observed.version
	v.mu.Unlock()
	ctx, cancel := withTimeout(ctx, v.opts.Settings.RequestTimeout())
	defer cancel()
	lease, err := v.opts.Leases.Get(ctx, v.opts.Name, metav1.GetOptions{})
	version := before
	switch {
	case apierrors.IsNotFound(err):
		lease = nil
	case err != nil:
		return fmt.Errorf("read the Lease: %w", nameTimeout(ctx, err))
	default:
		if version, err = versionOf(lease); err != nil {
			return err
		}
	}
	v.recordObservation(func(s *observedLease, now time.Duration) bool {
		return s.updateLive(lease, version, before, now, v.opts.Settings.Lease)
	})
	return nil
}

// recordObservation records an observation and notifies waiters and the leadership.
func (v *view) recordObservation(update func(s *observedLease, now time.Duration) bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.observed.holder()
	if update(&v.observed, v.opts.Boot()) {
		close(v.changed)
		v.changed = make(chan struct{})
	}
	v.onObserved(before, &v.observed)
}

// updateWith returns a function that records a Lease if its version is newer than the known version.
func (v *view) updateWith(lease *coordinationv1.Lease, version uint64) func(*observedLease, time.Duration) bool {
	return func(s *observedLease, now time.Duration) bool {
		return s.updateIfNewer(lease, version, now, v.opts.Settings.Lease)
	}
}

// writeLease creates or updates the Lease. It waits for the answer even if ctx ends: a
// process that is stopping must know whether it has the Lease, in order to release it.
func (v *view) writeLease(ctx context.Context, next *coordinationv1.Lease) (*coordinationv1.Lease, uint64, error) {
	ctx, cancel := withTimeout(context.WithoutCancel(ctx), v.opts.Settings.RequestTimeout())
	defer cancel()
	var answer *coordinationv1.Lease
	var err error
	if next.ResourceVersion == "" {
		answer, err = v.opts.Leases.Create(ctx, next, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) { // the namespace is missing: hide the reason, which callers take for a lost race
			err = fmt.Errorf("create the Lease %s: %w", v.opts.lease(), errors.New(err.Error()))
		}
	} else {
		answer, err = v.opts.Leases.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, 0, nameTimeout(ctx, err)
	}
	version, err := versionOf(answer)
	return answer, version, err
}

// errNoAnswer means that a request about the Lease or the claim took longer than allowed.
var errNoAnswer = errors.New("the API server did not answer")

// withTimeout bounds requests about the Lease or the claim.
func withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("%w within %s", errNoAnswer, d))
}

// nameTimeout adds the timeout of withTimeout to the error of a request, if this timeout ended the request.
func nameTimeout(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errNoAnswer) && !errors.Is(err, errNoAnswer) { // an HTTP client has already added it
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// electionRecord returns the Lease as last read. The raw form is the whole spec as JSON, since the raw
// form of client-go truncates times to seconds, so that a renewal could look as if nothing had changed.
func (v *view) electionRecord(leading bool) (*resourcelock.LeaderElectionRecord, []byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.observed.lease == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), v.opts.Name)
	}
	raw, err := json.Marshal(v.observed.lease.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("the Lease's spec: %w", err)
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&v.observed.lease.Spec)
	if !leading {
		record.HolderIdentity = ""
	}
	return record, raw, nil
}

func (v *view) isHolder() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.observed.holder() == v.opts.Identity
}

// hasRecentRenewal reports whether another replica was observed to renew this Lease so
// recently that the claim (claimTerms) cannot have expired.
func (v *view) hasRecentRenewal() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.observed.renewedTerm == v.opts.Settings.Lease && v.opts.Boot()-v.observed.renewedAt <= v.opts.Settings.Lease+Spare
}

// awaitAvailable returns when the Lease is available: nobody holds it, or it has expired
// and a live read has just confirmed that nobody renewed it.
func (v *view) awaitAvailable(ctx context.Context) error {
	for {
		if err := v.awaitObservedAvailable(ctx); err != nil {
			return err
		}
		if v.hasNoHolder() {
			return nil
		}
		if err := v.readLease(ctx); err != nil {
			return err
		}
		v.mu.Lock()
		wait := v.untilAvailable()
		v.mu.Unlock()
		if wait <= 0 {
			return nil
		}
	}
}

// hasNoHolder reports whether nobody holds the Lease.
func (v *view) hasNoHolder() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.observed.holder() == ""
}

func (v *view) awaitObservedAvailable(ctx context.Context) error {
	for {
		v.mu.Lock()
		wait, changed := v.untilAvailable(), v.changed
		v.mu.Unlock()
		if wait <= 0 {
			return nil
		}
		// Timers stand still while the host is suspended.
		if err := v.waitFor(ctx, changed, min(wait, checkPeriod)); err != nil {
			return err
		}
	}
}

// untilAvailable returns the time until the Lease is available. The caller holds mu.
func (v *view) untilAvailable() time.Duration {
	if holder := v.observed.holder(); holder != "" && (holder == v.opts.Identity || v.opts.HolderGone(holder)) {
		return 0
	}
	return v.observed.availableAt(v.opts.Settings.Lease) - v.opts.Boot()
}

// waitFor waits for d, or until wake is closed, and returns nil. It returns an error when ctx ends.
func (v *view) waitFor(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	timer := v.opts.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-wake:
	case <-timer.C():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
