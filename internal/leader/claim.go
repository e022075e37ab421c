// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClaimName is the name of the cluster's claim, a Lease in namespace kube-system.
const ClaimName = "drover-leader"

// claimTerms is how long a claim lasts, in Lease durations. The holder renews the claim once per Lease
// duration, and stops renewing the Lease itself when the claim is older than two Lease durations. A
// replica that has just observed a renewal of the Lease therefore knows that the claim is valid for
// three more Lease durations. This is long enough to succeed the leader without reading the claim first.
const claimTerms = 5

// errRival means that another Drover holds the claim.
var errRival = errors.New("another Drover leads in this cluster")

// claim is the cluster's claim as one replica sees and renews it. The claim names one Lease. All
// replicas that use this Lease for leader election share the claim. Replicas with another Lease may not lead.
type claim struct {
	opts       *Options
	lease      *view
	leadership *leadership

	mu        sync.Mutex
	observed  observedLease
	rival     string        // the other Lease that holds the claim, if any
	reported  string        // the rival that was reported, after it was observed to renew the claim
	forbidden bool          // this process is not permitted to write the claim, and has reported this
	held      bool          // this process has written the claim
	renewed   time.Duration // when the last successful write was sent
}

// awaitPermission returns once the holder of this Lease may lead in the cluster.
func (c *claim) awaitPermission(ctx context.Context) error {
	if c.opts.Claims == nil || c.lease.hasRecentRenewal() {
		return nil
	}
	for {
		wait, err := c.tryToHold(ctx)
		if err != nil || wait <= 0 {
			return err
		}
		if err := c.lease.waitFor(ctx, nil, min(wait, c.opts.Settings.Retry)); err != nil {
			return err
		}
	}
}

// term returns how long a claim lasts.
func (c *claim) term() time.Duration { return claimTerms * c.opts.Settings.Lease }

// tryToHold creates or renews the claim. If another Lease holds the claim, tryToHold returns the longest time
// to wait before the next try.
func (c *claim) tryToHold(ctx context.Context) (wait time.Duration, err error) {
	ctx, cancel := withTimeout(ctx, 2*c.opts.Settings.RequestTimeout())
	defer cancel()
	sent := c.opts.Boot()
	lease, err := c.readLease(ctx)
	if err == nil {
		if wait, rival := c.observeLease(lease); wait > 0 {
			c.setRival(rival)
			return wait, nil
		}
		err = c.writeLease(ctx, lease)
	}
	switch {
	case apierrors.IsForbidden(err):
		c.reportForbidden(err)
		return 0, nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return c.opts.Settings.Retry, nil
	case err != nil:
		return 0, fmt.Errorf("the cluster's claim %s/%s: %w", metav1.NamespaceSystem, ClaimName, nameTimeout(ctx, err))
	}
	c.setRival("")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held, c.renewed = true, sent
	return 0, nil
}

// refreshTerm runs before each renewal of the Lease. It renews the claim only if
// keepTerm was late, for example because this process was suspended.
func (c *claim) refreshTerm(ctx context.Context) error {
	if c.opts.Claims == nil || c.isFresh() {
		return nil
	}
	return c.renewTerm(ctx)
}

// renewTerm renews the claim, and ends leadership if another Drover holds the claim.
func (c *claim) renewTerm(ctx context.Context) error {
	wait, err := c.tryToHold(ctx)
	switch {
	case err != nil:
		return err
	case wait <= 0:
		return nil
	case c.hasRival():
		c.leadership.endAsLost(errRival)
		return errRival
	}
	return errors.New("another replica has just written the cluster's claim")
}

func (c *claim) isFresh() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.forbidden || c.held && c.opts.Boot()-c.renewed <= 2*c.opts.Settings.Lease
}

// readLease returns the Lease that contains the claim, or nil if there is none.
func (c *claim) readLease(ctx context.Context) (*coordinationv1.Lease, error) {
	lease, err := c.opts.Claims.Get(ctx, ClaimName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is the answer for no claim.
	}
	return lease, err
}

// observeLease returns the other Lease that holds the claim, if any, and the minimum time for
// which the claim remains valid. This time counts from the last observed change of the
// claim, on the clock of this process.
func (c *claim) observeLease(lease *coordinationv1.Lease) (remaining time.Duration, rival string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, s := c.opts.Boot(), &c.observed
	s.updateFrom(lease, 0, now, c.term())
	rival = cmp.Or(s.holder(), c.rival) // the claim may have been deleted by hand
	if rival == "" || rival == c.opts.lease() {
		return 0, ""
	}
	return s.availableAt(c.term()) - now, rival
}

// writeLease renews the claim, creates it, or takes over an expired claim.
func (c *claim) writeLease(ctx context.Context, observed *coordinationv1.Lease) error {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ClaimName}}
	if observed != nil {
		next = observed.DeepCopy()
	}
	now := metav1.NewMicroTime(c.opts.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.RenewTime = new(c.opts.lease()), &now
	next.Spec.LeaseDurationSeconds = new(int32(c.term() / time.Second)) //nolint:gosec // validated
	if observed == nil {
		_, err := c.opts.Claims.Create(ctx, next, metav1.CreateOptions{})
		return err
	}
	_, err := c.opts.Claims.Update(ctx, next, metav1.UpdateOptions{})
	return err
}

// keepTerm renews the claim while this process leads.
func (c *claim) keepTerm(ctx context.Context) {
	select {
	case <-c.leadership.elected:
	case <-ctx.Done():
		return
	}
	for c.leadership.isLeading() {
		interval := c.opts.Settings.Lease
		if c.renewTerm(ctx) != nil {
			interval = c.opts.Settings.Retry
		}
		if c.lease.waitFor(ctx, nil, interval) != nil {
			return
		}
	}
}

func (c *claim) hasRival() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rival != ""
}

// setRival records which other Lease holds the claim. It reports once that there is a
// rival, and once that the rival is gone, but only if the rival was observed to renew the
// claim. A claim that nobody renews may be left over from a removed Drover, and only has to
// expire.
func (c *claim) setRival(rival string) {
	c.mu.Lock()
	before, reported := c.rival, c.reported
	c.rival = rival
	if rival == "" || c.observed.renewedAt != 0 {
		c.reported = rival
	}
	now := c.reported
	c.mu.Unlock()
	switch {
	case now != reported && now == "":
		c.opts.Log.Info("No other Drover leads in this cluster any more", "lease", c.opts.lease(), "other", reported)
	case now != reported:
		c.opts.Log.Error(errRival, "Two Drovers run in this cluster: this Drover is inactive until the claim of the other Drover expires", "lease", c.opts.lease(), "other", rival)
		c.opts.Conflict(fmt.Sprintf("two Drovers run in this cluster, with the Leases %s and %s: only the Drover with the Lease %[2]s is active, until its claim expires. Remove one of them, or give all replicas the same --lease-lock-namespace and --lease-lock-name", c.opts.lease(), rival))
	case rival != before && rival != "":
		c.opts.Log.Info("Waiting for the cluster's claim of another Drover to expire", "lease", c.opts.lease(), "other", rival)
	}
}

func (c *claim) reportForbidden(err error) {
	c.mu.Lock()
	reported := c.forbidden
	c.forbidden = true
	c.mu.Unlock()
	if !reported {
		c.opts.Log.Error(err, "The controller is not permitted to write the cluster's claim, so it cannot detect a second Drover: apply the controller's RBAC again", "claim", metav1.NamespaceSystem+"/"+ClaimName)
	}
}
