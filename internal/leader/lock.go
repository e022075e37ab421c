// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// Leases reads and writes the Leases of one namespace. client-go's typed client
// implements it.
type Leases interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// Options are the settings of a Lock.
type Options struct {
	Leases          Leases
	Namespace, Name string
	// Identity is unique to this process; see the function Identity.
	Identity string
	Settings Settings
	Clock    clock.WithDelayedExecution
	// Boot is BootTime, except in tests.
	Boot func() time.Duration
	Log  logr.Logger
	// HolderGone reports whether a holder has certainly ended, so that its Lease
	// need not expire first. If nil, no holder counts as gone.
	HolderGone func(holder string) bool
	// Warm returns when this process could act at once as the leader. Until then the
	// process does not compete for the Lease. If nil, the process is always warm.
	Warm func(ctx context.Context) error
	// Claims are the Leases of namespace kube-system, which contains the cluster's
	// claim. If nil, the Lock leads without a claim.
	Claims Leases
	// Conflict, if not nil, is called once for each other Drover that leads in this
	// cluster.
	Conflict func(text string)
}

// lease returns the namespace and name of the Lease.
func (o *Options) lease() string { return o.Namespace + "/" + o.Name }

// ErrLost means that the Lease was lost. Lock.Err wraps it.
var ErrLost = errors.New("the Lease was lost")

// Lock is the Lease as client-go's elector sees it. It leads at most once: a
// process that has lost or released the Lease must restart.
type Lock struct {
	opts       Options
	lease      view
	leadership leadership
	claim      claim
}

var _ resourcelock.Interface = (*Lock)(nil)

// NewLock returns a Lock. The caller must run its Watch.
func NewLock(o Options) *Lock {
	if o.HolderGone == nil {
		o.HolderGone = func(string) bool { return false }
	}
	if o.Warm == nil {
		o.Warm = func(context.Context) error { return nil }
	}
	if o.Conflict == nil {
		o.Conflict = func(string) {}
	}
	l := &Lock{opts: o}
	l.leadership = leadership{opts: &l.opts, guard: NewGuard(o.Clock, o.Boot), lost: make(chan struct{}), elected: make(chan struct{})}
	l.lease = view{opts: &l.opts, onObserved: l.leadership.followHolder, changed: make(chan struct{})}
	l.claim = claim{opts: &l.opts, lease: &l.lease, leadership: &l.leadership}
	return l
}

// Guard returns the guard, which is open while this process holds the Lease.
func (l *Lock) Guard() *Guard { return l.leadership.guard }

// Lost returns a channel that is closed when this process has lost the Lease.
func (l *Lock) Lost() <-chan struct{} { return l.leadership.lost }

// Err returns why the leadership has ended, once Lost is closed.
func (l *Lock) Err() error {
	_, endCause := l.leadership.currentState()
	return endCause
}

// TryErr returns the error of the last try to acquire or renew the Lease, or nil after a success.
func (l *Lock) TryErr() error { return l.leadership.lastTryError() }

// Healthy returns an error if this process led and can no longer renew the Lease.
func (l *Lock) Healthy() error { return l.leadership.checkHealth() }

// Confirm reads the Lease live and reports whether this process still leads. If it
// does not, leadership is lost as if the watch had shown it.
func (l *Lock) Confirm(ctx context.Context) (leads bool, err error) {
	if err := l.lease.readLease(ctx); err != nil {
		return false, err
	}
	return l.leadership.isLeading(), nil
}

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return l.opts.Identity }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return l.opts.lease() }

// RecordEvent implements resourcelock.Interface. It does nothing, since the log and the
// metrics report all changes.
func (l *Lock) RecordEvent(string) {}

// Get implements resourcelock.Interface. For a replica that does not lead, it returns
// only when the Lease is available, and returns it without a holder or as not found.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	leading, err := l.leadership.currentState()
	if err == nil && !leading {
		err = l.opts.Warm(ctx)
	}
	if err == nil {
		err = l.lease.readLease(ctx)
	}
	if err == nil && !leading {
		err = l.lease.awaitAvailable(ctx)
	}
	if err != nil {
		l.leadership.recordTry(err)
		return nil, nil, err
	}
	return l.lease.electionRecord(leading)
}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	leading, err := l.leadership.currentState()
	if err == nil && leading {
		err = errors.New("the leader does not create its Lease")
	}
	if err != nil {
		return err
	}
	err = l.acquireLease(ctx)
	l.leadership.recordTry(err)
	return err
}

// Update renews, acquires or, for a record without a holder, releases the Lease. It
// writes the present time: the times of the elector are from before Get waited.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	leading, err := l.leadership.currentState()
	switch {
	case err != nil:
		return err
	case record.HolderIdentity == "" && leading:
		return l.releaseLease(ctx)
	case record.HolderIdentity == "":
		return ErrNotLeading
	case leading:
		err = l.renewLease(ctx)
	default:
		err = l.acquireLease(ctx)
	}
	l.leadership.recordTry(err)
	return err
}

// acquireLease acquires the Lease, and waits again whenever another process was faster.
func (l *Lock) acquireLease(ctx context.Context) error {
	for {
		if err := l.claim.awaitPermission(ctx); err != nil {
			return err
		}
		err := l.tryAcquire(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return err
		}
		if err := l.lease.readLease(ctx); err != nil {
			return err
		}
		if err := l.lease.awaitAvailable(ctx); err != nil {
			return err
		}
	}
}

// tryAcquire writes this process as the holder if the Lease is available.
func (l *Lock) tryAcquire(ctx context.Context) error {
	l.lease.mu.Lock()
	observed, wait := l.lease.observed, l.lease.untilAvailable()
	l.lease.mu.Unlock()
	if wait > 0 {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), l.opts.Name, errors.New("another process holds it"))
	}
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.opts.Namespace, Name: l.opts.Name}}
	transitions := int32(0)
	if observed.lease != nil {
		next, transitions = observed.lease.DeepCopy(), observed.transitions()
		if observed.holder() != l.opts.Identity { // otherwise an earlier try succeeded, and its response was lost
			transitions++
		}
	}
	sent, now := l.opts.Boot(), metav1.NewMicroTime(l.opts.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &l.opts.Identity, &transitions
	next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
	next.Spec.LeaseDurationSeconds = l.opts.Settings.leaseSeconds()
	answer, version, err := l.lease.writeLease(ctx, next)
	if err != nil {
		return err
	}
	l.becomeLeader(answer, version, sent)
	return nil
}

func (s Settings) leaseSeconds() *int32 { return new(int32(s.Lease / time.Second)) } //nolint:gosec // validated

// becomeLeader records that this process leads. The epoch is the resourceVersion of the
// write that acquired the Lease.
func (l *Lock) becomeLeader(answer *coordinationv1.Lease, epoch uint64, sent time.Duration) {
	l.opts.Log.Info("Became leader", "lease", l.Describe(), "identity", l.opts.Identity, "epoch", epoch)
	update := l.lease.updateWith(answer, epoch)
	l.lease.recordObservation(func(s *observedLease, now time.Duration) bool {
		l.leadership.begin(epoch, sent) // under view.mu, so that no older observation ends the new leadership
		return update(s, now)           // the view may already know of a newer holder
	})
}

// renewLease renews the Lease, and extends the guard, whose term counts from when the renewal was sent.
func (l *Lock) renewLease(ctx context.Context) error {
	if err := l.claim.refreshTerm(ctx); err != nil {
		return err
	}
	next, err := l.ownLease()
	if err != nil {
		return err
	}
	sent, now := l.opts.Boot(), metav1.NewMicroTime(l.opts.Clock.Now())
	next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &now, l.opts.Settings.leaseSeconds()
	answer, version, err := l.lease.writeLease(ctx, next)
	if err != nil {
		return err
	}
	l.leadership.guard.extend(sent, l.opts.Settings.guardTerm())
	l.lease.recordObservation(l.lease.updateWith(answer, version))
	return nil
}

// ownLease returns a copy of the Lease as last read, which must name this process.
func (l *Lock) ownLease() (*coordinationv1.Lease, error) {
	if _, endCause := l.leadership.currentState(); errors.Is(endCause, ErrLost) {
		return nil, endCause
	}
	l.lease.mu.Lock()
	defer l.lease.mu.Unlock()
	if l.lease.observed.holder() != l.opts.Identity {
		return nil, ErrNotLeading
	}
	return l.lease.observed.lease.DeepCopy(), nil
}

// releaseTries bounds how often a release is sent. A try can conflict with a renewal
// under way, or its answer can be lost.
const releaseTries = 3

// releaseLease clears the holder of the Lease, so that another process can acquire the Lease
// at once. It does so only if no call is in flight, and if this process holds the Lease as last
// read. The release of client-go could clear a successor as the holder.
func (l *Lock) releaseLease(ctx context.Context) error {
	l.leadership.guard.closeForRelease()
	if n := l.leadership.guard.InFlight(); n > 0 {
		return fmt.Errorf("the Lease is not released: %d calls to engines have not ended", n)
	}
	l.leadership.endForRelease()
	var err error
	for range releaseTries {
		if err = l.clearHolder(ctx); err == nil || errors.Is(err, ErrLost) {
			return err
		}
		if readErr := l.lease.readLease(ctx); readErr == nil && !l.lease.isHolder() {
			return nil // the answer to an earlier try was lost
		}
	}
	return fmt.Errorf("the Lease is not released: %w", err)
}

func (l *Lock) clearHolder(ctx context.Context) error {
	next, err := l.ownLease()
	if err != nil {
		return err
	}
	now := metav1.NewMicroTime(l.opts.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
	answer, version, err := l.lease.writeLease(ctx, next)
	if err != nil {
		return err
	}
	l.opts.Log.Info("Released leadership", "lease", l.Describe(), "identity", l.opts.Identity)
	l.lease.recordObservation(l.lease.updateWith(answer, version))
	return nil
}
