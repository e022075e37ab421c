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

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// Leases are the Leases of one namespace; client-go's typed client has them.
type Leases interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error)
	List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error)
	Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error)
	Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error)
}

// Options of a Lock.
type Options struct {
	Leases          Leases
	Namespace, Name string
	// Identity is this process's alone; see Identity.
	Identity string
	Settings Settings
	Clock    clock.WithDelayedExecution
	// Boot is BootTime, but for tests.
	Boot func() time.Duration
	Log  logr.Logger
	// HolderGone tells of a holder that certainly is no more, so that nobody has to
	// wait its Lease out; nil knows of none.
	HolderGone func(holder string) bool
	// Warm returns when this process could act at once; until then it leaves the
	// Lease to others. Nil is always.
	Warm func(ctx context.Context) error
	// Claims are the Leases of namespace kube-system, with the cluster's claim. Nil
	// leads without one.
	Claims Leases
	// Conflict is called once for each other Drover that leads in this cluster; nil
	// is nobody.
	Conflict func(text string)
}

// ErrLost is what an error of Lock.Err is.
var ErrLost = errors.New("the Lease was lost")

// Lock is the Lease as client-go's elector sees it. It leads at most once: who
// has lost or released the Lease has to start anew.
type Lock struct {
	o     Options
	guard *Guard
	lost  chan struct{}

	mu      sync.Mutex
	sight   observedLease
	changed chan struct{} // closed when sight changes
	leading bool
	over    error // why this process cannot lead any more
	claim   claim

	won chan struct{} // closed when this process has become the leader
}

var _ resourcelock.Interface = (*Lock)(nil)

// NewLock returns a Lock; somebody has to run its Watch.
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
	return &Lock{
		o: o, guard: NewGuard(o.Clock, o.Boot),
		lost: make(chan struct{}), changed: make(chan struct{}), won: make(chan struct{}),
	}
}

// Guard is open while this process holds the Lease.
func (l *Lock) Guard() *Guard { return l.guard }

// Lost is closed when this process held the Lease and has lost it.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Err says why, once Lost is closed.
func (l *Lock) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// Healthy is an error for a leader that can no longer renew.
func (l *Lock) Healthy() error {
	l.mu.Lock()
	over, leading := l.over, l.leading
	l.mu.Unlock()
	switch {
	case errors.Is(over, ErrLost):
		return over
	case leading && l.guard.lapsed():
		return ErrLapsed
	}
	return nil
}

// Confirm reads the Lease live and tells whether this process still leads. If it
// does not, the lead is lost as when the watch shows that.
func (l *Lock) Confirm(ctx context.Context) (leads bool, err error) {
	if err := l.read(ctx); err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading, nil
}

// Identity implements resourcelock.Interface.
func (l *Lock) Identity() string { return l.o.Identity }

// Describe implements resourcelock.Interface.
func (l *Lock) Describe() string { return l.o.Namespace + "/" + l.o.Name }

// RecordEvent implements resourcelock.Interface; the log and the metrics tell.
func (l *Lock) RecordEvent(string) {}

// Get reads the Lease. For a replica that does not lead it returns once the
// Lease is to be had, and shows it without a holder, or as not found.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	leading, err := l.role()
	if err == nil && !leading {
		err = l.o.Warm(ctx)
	}
	if err == nil {
		err = l.read(ctx)
	}
	if err == nil && !leading {
		err = l.await(ctx)
	}
	if err != nil {
		return nil, nil, err
	}
	return l.record(leading)
}

// role tells whether this process leads; it fails if it cannot any more.
func (l *Lock) role() (leading bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leading, l.over
}

// record is the Lease as last read. The raw form is the whole spec: client-go's
// own cuts times to seconds, so that it takes a renewal for none.
func (l *Lock) record(leading bool) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sight.lease == nil {
		return nil, nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), l.o.Name)
	}
	raw, err := json.Marshal(l.sight.lease.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("the Lease's spec: %w", err)
	}
	record := resourcelock.LeaseSpecToLeaderElectionRecord(&l.sight.lease.Spec)
	if !leading {
		record.HolderIdentity = ""
	}
	return record, raw, nil
}

// read looks at the API, live.
func (l *Lock) read(ctx context.Context) error {
	l.mu.Lock()
	asked := l.sight.version
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.o.Settings.Request)
	defer cancel()
	lease, err := l.o.Leases.Get(ctx, l.o.Name, metav1.GetOptions{})
	version := asked
	switch {
	case apierrors.IsNotFound(err):
		lease = nil
	case err != nil:
		return fmt.Errorf("read the Lease: %w", err)
	default:
		if version, err = versionOf(lease); err != nil {
			return err
		}
	}
	l.see(func(s *observedLease, now time.Duration) bool {
		return s.seeLive(lease, version, asked, now, l.o.Settings.Lease)
	})
	return nil
}

// see takes in what was seen, wakes who waits and, for a leader, draws the
// consequences.
func (l *Lock) see(take func(s *observedLease, now time.Duration) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seeLocked(take)
}

func (l *Lock) seeLocked(take func(s *observedLease, now time.Duration) bool) {
	before := l.sight.holder()
	if take(&l.sight, l.o.Boot()) {
		close(l.changed)
		l.changed = make(chan struct{})
	}
	holder := l.sight.holder()
	if !l.leading {
		if holder != before && holder != "" && holder != l.o.Identity {
			l.o.Log.Info("Standing by: another replica leads", "lease", l.Describe(), "leader", holder)
		}
		return
	}
	switch {
	case l.sight.lease == nil:
		l.lose(fmt.Errorf("%w: somebody deleted it", ErrLost))
	case holder != l.o.Identity:
		l.lose(fmt.Errorf("%w: its holder is %q", ErrLost, holder))
	}
}

// lose wants the lock held.
func (l *Lock) lose(err error) {
	l.leading, l.over = false, err
	l.guard.revoke(err)
	l.o.Log.Info("Lost the lead", "identity", l.o.Identity, "cause", err.Error())
	close(l.lost)
}

// Create implements resourcelock.Interface.
func (l *Lock) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	leading, err := l.role()
	if err == nil && leading {
		err = errors.New("the leader does not create its Lease")
	}
	if err != nil {
		return err
	}
	return l.acquire(ctx)
}

// Update renews, takes or, for a record without a holder, releases the Lease.
// What it writes is the Lock's own: the elector's times are those from before
// it waited.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	leading, err := l.role()
	switch {
	case err != nil:
		return err
	case record.HolderIdentity == "" && leading:
		return l.release(ctx)
	case record.HolderIdentity == "":
		return ErrNotLeading
	case leading:
		return l.renew(ctx)
	}
	return l.acquire(ctx)
}

// acquire takes the Lease, or waits on when somebody else was faster.
func (l *Lock) acquire(ctx context.Context) error {
	for {
		if err := l.ensureClaim(ctx); err != nil {
			return err
		}
		err := l.take(ctx)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
			return err
		}
		if err := l.read(ctx); err != nil {
			return err
		}
		if err := l.await(ctx); err != nil {
			return err
		}
	}
}

// take writes this process into a Lease that is to be had.
func (l *Lock) take(ctx context.Context) error {
	l.mu.Lock()
	seen, free := l.sight, l.free()
	l.mu.Unlock()
	if free > 0 {
		return apierrors.NewConflict(coordinationv1.Resource("leases"), l.o.Name, errors.New("somebody else holds it"))
	}
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.o.Namespace, Name: l.o.Name}}
	transitions := int32(0)
	if seen.lease != nil {
		next, transitions = seen.lease.DeepCopy(), seen.transitions()
		if seen.holder() != l.o.Identity { // else it was won, and the answer was lost
			transitions++
		}
	}
	sent, now := l.o.Boot(), metav1.NewMicroTime(l.o.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.LeaseTransitions = &l.o.Identity, &transitions
	next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
	next.Spec.LeaseDurationSeconds = l.seconds()
	answer, version, err := l.write(ctx, next)
	if err != nil {
		return err
	}
	l.win(answer, version, sent)
	return nil
}

func (l *Lock) seconds() *int32 { return new(int32(l.o.Settings.Lease / time.Second)) } //nolint:gosec // validated

// win makes the resourceVersion of the write that won the epoch.
func (l *Lock) win(answer *coordinationv1.Lease, epoch uint64, sent time.Duration) {
	l.o.Log.Info("Became leader", "lease", l.Describe(), "identity", l.o.Identity, "epoch", epoch)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leading = true
	close(l.won)
	l.guard.open(epoch, sent, l.o.Settings.term())
	l.seeLocked(l.newer(answer, epoch)) // or it is lost by now
}

// newer takes a Lease in if it is newer than what was seen.
func (l *Lock) newer(lease *coordinationv1.Lease, version uint64) func(*observedLease, time.Duration) bool {
	return func(s *observedLease, now time.Duration) bool { return s.see(lease, version, now, l.o.Settings.Lease) }
}

// renew tells the others to wait on, and extends the guard from the moment of
// sending.
func (l *Lock) renew(ctx context.Context) error {
	if err := l.refreshClaim(ctx); err != nil {
		return err
	}
	next, err := l.own()
	if err != nil {
		return err
	}
	sent, now := l.o.Boot(), metav1.NewMicroTime(l.o.Clock.Now())
	next.Spec.RenewTime, next.Spec.LeaseDurationSeconds = &now, l.seconds()
	answer, version, err := l.write(ctx, next)
	if err != nil {
		return err
	}
	l.guard.extend(sent, l.o.Settings.term())
	l.see(l.newer(answer, version))
	return nil
}

// own is a copy of the Lease as last read, which has to name this process.
func (l *Lock) own() (*coordinationv1.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.over, ErrLost) {
		return nil, l.over
	}
	if l.sight.holder() != l.o.Identity {
		return nil, ErrNotLeading
	}
	return l.sight.lease.DeepCopy(), nil
}

// releaseTries bounds how often a release is sent that met a renewal under way or
// whose answer was lost.
const releaseTries = 3

// release empties the Lease, which lets somebody else take it at once. It does
// so only if nothing is in flight any more and the Lease, as last read, is this
// process's: client-go's own release can empty a successor's.
func (l *Lock) release(ctx context.Context) error {
	l.guard.shut()
	if n := l.guard.InFlight(); n > 0 {
		return fmt.Errorf("the Lease is not released: %d calls to engines have not ended", n)
	}
	l.resign()
	var err error
	for range releaseTries {
		if err = l.empty(ctx); err == nil || errors.Is(err, ErrLost) {
			return err
		}
		if readErr := l.read(ctx); readErr == nil && !l.holds() {
			return nil // the answer to an earlier try was lost
		}
	}
	return fmt.Errorf("the Lease is not released: %w", err)
}

func (l *Lock) empty(ctx context.Context) error {
	next, err := l.own()
	if err != nil {
		return err
	}
	now := metav1.NewMicroTime(l.o.Clock.Now())
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = new(""), new(int32(1))
	next.Spec.AcquireTime, next.Spec.RenewTime = &now, &now
	answer, version, err := l.write(ctx, next)
	if err != nil {
		return err
	}
	l.o.Log.Info("Released the lead", "lease", l.Describe(), "identity", l.o.Identity)
	l.see(l.newer(answer, version))
	return nil
}

// resign is done before a release is sent, so that the Lock does not take its
// own release for a loss. Nothing undoes it.
func (l *Lock) resign() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading {
		l.leading, l.over = false, ErrShut
	}
}

func (l *Lock) holds() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sight.holder() == l.o.Identity
}

// write creates or updates the Lease. Once sent it waits for the answer, even if
// ctx ends: a process that is stopped must know whether it has the Lease, so as
// to release it.
func (l *Lock) write(ctx context.Context, next *coordinationv1.Lease) (*coordinationv1.Lease, uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.o.Settings.Request)
	defer cancel()
	var answer *coordinationv1.Lease
	var err error
	if next.ResourceVersion == "" {
		answer, err = l.o.Leases.Create(ctx, next, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) { // the namespace: not a race that was lost
			err = fmt.Errorf("create the Lease %s: %w", l.Describe(), errors.New(err.Error()))
		}
	} else {
		answer, err = l.o.Leases.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return nil, 0, err
	}
	version, err := versionOf(answer)
	return answer, version, err
}
