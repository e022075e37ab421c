// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimName is the name of the cluster's claim, a Lease in namespace kube-system.
const ClaimName = "drover-leader"

// claimTerms is the term of a claim, in Lease durations. The holder renews the claim
// once per Lease duration, and stops renewing the Lease itself when the claim is older
// than two. A replica that has just observed a renewal of the Lease therefore knows
// that the claim is valid for three more. That is long enough to succeed that leader
// without reading the claim first.
const claimTerms = 5

// errRival means that another Drover has the claim.
var errRival = errors.New("another Drover leads in this cluster")

// claim is what a Lock knows of the cluster's claim, which names the Lease that
// leads. All replicas that elect on one Lease share it. Replicas of another Lease
// may not lead.
type claim struct {
	observed  observedLease
	rival     string // the other Lease that has the claim
	reported  string // the rival that was observed to renew, and was reported
	forbidden bool   // this process may not write the claim, and has reported so
	held      bool
	renewed   time.Duration // when the last successful write was sent
}

// ensureClaim returns once this Lease may lead in the cluster.
func (l *Lock) ensureClaim(ctx context.Context) error {
	if l.opts.Claims == nil || l.hasRecentRenewal() {
		return nil
	}
	for {
		wait, err := l.tryClaim(ctx)
		if err != nil || wait <= 0 {
			return err
		}
		if err := l.waitFor(ctx, nil, min(wait, l.opts.Settings.Retry)); err != nil {
			return err
		}
	}
}

// hasRecentRenewal reports whether another replica was observed to renew this Lease so
// recently that the claim cannot have expired.
func (l *Lock) hasRecentRenewal() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.observed.renewedTerm == l.opts.Settings.Lease && l.opts.Boot()-l.observed.renewedAt <= l.opts.Settings.Lease+Spare
}

// claimTerm returns how long a claim lasts.
func (l *Lock) claimTerm() time.Duration { return claimTerms * l.opts.Settings.Lease }

// tryClaim creates or renews the claim. If another Lease has it, tryClaim returns
// the longest time to wait before the next try.
func (l *Lock) tryClaim(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*l.opts.Settings.Request)
	defer cancel()
	sent := l.opts.Boot()
	lease, err := l.readClaim(ctx)
	if err == nil {
		if wait, rival := l.observeClaim(lease); wait > 0 {
			l.setRival(rival)
			return wait, nil
		}
		err = l.writeClaim(ctx, lease)
	}
	switch {
	case apierrors.IsForbidden(err):
		l.reportForbidden(err)
		return 0, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return l.opts.Settings.Retry, nil
	case err != nil:
		return 0, fmt.Errorf("the cluster's claim %s/%s: %w", metav1.NamespaceSystem, ClaimName, err)
	}
	l.setRival("")
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim.held, l.claim.renewed = true, sent
	return 0, nil
}

// refreshClaim runs before each renewal of the Lease. It renews the claim only if
// keepClaim was late, for example because this process was suspended.
func (l *Lock) refreshClaim(ctx context.Context) error {
	if l.opts.Claims == nil || l.claimIsFresh() {
		return nil
	}
	return l.renewClaim(ctx)
}

// renewClaim renews the claim, and ends leadership if another Drover has it.
func (l *Lock) renewClaim(ctx context.Context) error {
	wait, err := l.tryClaim(ctx)
	switch {
	case err != nil:
		return err
	case wait <= 0:
		return nil
	case l.hasRival():
		l.loseLeadership(errRival)
		return errRival
	}
	return errors.New("the cluster's claim was written by another replica meanwhile")
}

func (l *Lock) claimIsFresh() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claim.forbidden || l.claim.held && l.opts.Boot()-l.claim.renewed <= 2*l.opts.Settings.Lease
}

// readClaim returns the claim, or nil if there is none.
func (l *Lock) readClaim(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := l.opts.Claims.Get(ctx, ClaimName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is the answer for no claim.
	}
	return lease, err
}

// observeClaim returns the other Lease that has the claim, and the least time that the
// claim still lasts. That time counts from when the claim was observed to change, on
// this process's own clock.
func (l *Lock) observeClaim(lease *coordinationv1.Lease) (remaining time.Duration, rival string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, s := l.opts.Boot(), &l.claim.observed
	s.update(lease, 0, now, l.claimTerm())
	rival = cmp.Or(s.holder(), l.claim.rival) // the claim may have been deleted by hand
	if rival == "" || rival == l.Describe() {
		return 0, ""
	}
	return s.availableAt(l.claimTerm()) - now, rival
}

// writeClaim renews the claim, creates it, or takes over one that has expired.
func (l *Lock) writeClaim(ctx context.Context, observed *coordinationv1.Lease) error {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ClaimName}}
	if observed != nil {
		next = observed.DeepCopy()
	}
	now := metav1.NewMicroTime(l.opts.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.RenewTime = new(l.Describe()), &now
	next.Spec.LeaseDurationSeconds = new(int32(l.claimTerm() / time.Second)) //nolint:gosec // validated
	if observed == nil {
		_, err := l.opts.Claims.Create(ctx, next, metav1.CreateOptions{})
		return err
	}
	_, err := l.opts.Claims.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// keepClaim renews the claim while this process leads.
func (l *Lock) keepClaim(ctx context.Context) {
	select {
	case <-l.elected:
	case <-ctx.Done():
		return
	}
	for l.isLeading() {
		again := l.opts.Settings.Lease
		if l.renewClaim(ctx) != nil {
			again = l.opts.Settings.Retry
		}
		if l.waitFor(ctx, nil, again) != nil {
			return
		}
	}
}

func (l *Lock) isLeading() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading
}

func (l *Lock) hasRival() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claim.rival != ""
}

// loseLeadership ends leadership as if the Lease had been lost.
func (l *Lock) loseLeadership(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.loseLeadershipLocked(fmt.Errorf("%w: %w", ErrLost, cause))
	}
}

// setRival records which other Lease has the claim. It reports a rival once, if
// that rival was observed to renew, and reports its end. Otherwise the claim may be
// left over from a Drover that was removed, and only has to expire.
func (l *Lock) setRival(rival string) {
	l.mu.Lock()
	before, reported := l.claim.rival, l.claim.reported
	l.claim.rival = rival
	if rival == "" || l.claim.observed.renewedAt != 0 {
		l.claim.reported = rival
	}
	now := l.claim.reported
	l.mu.Unlock()
	switch {
	case now != reported && now == "":
		l.opts.Log.Info("No other Drover leads in this cluster any more", "lease", l.Describe(), "other", reported)
	case now != reported:
		l.opts.Log.Error(errRival, "Two Drovers run in this cluster: this one does not act while the other one's claim lasts", "lease", l.Describe(), "other", rival)
		l.opts.Conflict(fmt.Sprintf("two Drovers run in this cluster, by the Leases %s and %s: only the latter acts, until its claim has not been renewed for a while. Remove one, or give all replicas the same --lease-lock-namespace and --lease-lock-name", l.Describe(), rival))
	case rival != before && rival != "":
		l.opts.Log.Info("Waiting for the cluster's claim of another Drover to expire", "lease", l.Describe(), "other", rival)
	}
}

func (l *Lock) reportForbidden(err error) {
	l.mu.Lock()
	reported := l.claim.forbidden
	l.claim.forbidden = true
	l.mu.Unlock()
	if !reported {
		l.opts.Log.Error(err, "A second Drover in this cluster would not be noticed: the controller may not write the cluster's claim, so apply its RBAC anew", "claim", metav1.NamespaceSystem+"/"+ClaimName)
	}
}
