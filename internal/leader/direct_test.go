// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"cloudnative.tw/drover/test/assert"
)

// These tests call a Lock directly, without an elector and a watch, and look at what it
// returns and writes.

var errBoom = errors.New("boom")

// directLock is a Lock with its API.
type directLock struct {
	*Lock
	t         *testing.T
	api       *leaseAPI
	leases    *connection
	suspended atomic.Int64 // a time.Duration
}

func newDirectLock(t *testing.T, change ...func(*Options)) *directLock {
	t.Helper()
	d := &directLock{t: t, api: newLeaseAPI()}
	d.leases = newConnection(d.api)
	o := newOptions(d.leases, "me", DefaultSettings())
	awake := o.Boot
	o.Boot = func() time.Duration { return awake() + time.Duration(d.suspended.Load()) }
	for _, c := range change {
		c(&o)
	}
	d.Lock = NewLock(o)
	return d
}

// fail makes every request fail.
func (w *connection) fail() { w.setHooks(func(string) error { return errBoom }, nil) }

var mine = resourcelock.LeaderElectionRecord{HolderIdentity: "me"}

// lead acquires a Lease that is not there.
func (d *directLock) lead() *directLock {
	d.t.Helper()
	assert.NoError(d.t, d.Create(d.t.Context(), mine))
	return d
}

// holdBy writes a Lease that another process holds.
func (d *directLock) holdBy(holder string) {
	d.t.Helper()
	now := metav1.NewMicroTime(time.Now())
	if _, err := d.api.create(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "it"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(15)), AcquireTime: &now, RenewTime: &now},
	}); err != nil {
		d.t.Fatal(err)
	}
}

// loseLease takes the Lease from the leader.
func (d *directLock) loseLease() {
	d.t.Helper()
	d.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("stranger") })
	if leads, err := d.Confirm(d.t.Context()); leads || err != nil {
		d.t.Fatalf("it leads: %v, %v", leads, err)
	}
	select {
	case <-d.Lost():
	default:
		d.t.Error("the loss was not reported")
	}
}

// begin runs a call, and returns its error once it has ended.
func begin(call func() error) <-chan error {
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	synctest.Wait()
	return ended
}

// wantPending checks that a call goes on.
func (d *directLock) wantPending(ended <-chan error) {
	d.t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		d.t.Fatalf("it ended, with %v", err)
	default:
	}
}

// wantEnd checks that a call has ended with an error that contains text, or without an error if text is empty.
func (d *directLock) wantEnd(ended <-chan error, text string) {
	d.t.Helper()
	synctest.Wait()
	select {
	case err := <-ended:
		if err == nil && text != "" || err != nil && (text == "" || !strings.Contains(err.Error(), text)) {
			d.t.Errorf("it ended with %v, want %q", err, text)
		}
	default:
		d.t.Fatal("it goes on")
	}
}

func (d *directLock) get() error {
	_, _, err := d.Get(d.t.Context())
	return err
}

func (d *directLock) update() error { return d.Update(d.t.Context(), mine) }

// TestWrittenLease checks what is in the Lease after it was acquired, renewed and released.
func TestWrittenLease(t *testing.T) { inBubble(t, checkWrittenLease) }

func checkWrittenLease(t *testing.T) {
	d := newDirectLock(t).lead()
	acquired := time.Now()
	lease, _ := d.api.get()
	check := func(what, holder string, seconds int32, acquired, renewed time.Time) {
		t.Helper()
		s := lease.Spec
		if *s.HolderIdentity != holder || *s.LeaseDurationSeconds != seconds || !s.AcquireTime.Time.Equal(acquired) || !s.RenewTime.Time.Equal(renewed) || *s.LeaseTransitions != 0 {
			t.Errorf("%s: the Lease is %+v", what, s)
		}
	}
	check("acquired", "me", 15, acquired, acquired)
	assert.True(t, lease.Namespace == "default" && lease.Name == "it" && d.leadership.isLeading(),
		"the Lease is %s/%s, and it leads: %v", lease.Namespace, lease.Name, d.leadership.isLeading())
	select {
	case <-d.leadership.elected:
	default:
		t.Error("those who wait for the election still do")
	}
	d.api.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(99)) })
	assert.NoError(t, d.get())
	for range 2 { // the second relies on the answer to the first
		advance(2 * time.Second)
		assert.ReportError(t, d.update())
		lease, _ = d.api.get()
		check("renewed", "me", 15, acquired, time.Now())
	}
	advance(time.Second)
	err := d.Update(t.Context(), resourcelock.LeaderElectionRecord{})
	assert.True(t, err == nil && !d.lease.isHolder(), "the release ended with %v, and it is the holder: %v", err, d.lease.isHolder())
	lease, _ = d.api.get()
	check("released", "", 1, time.Now(), time.Now())
}

// TestReleaseIsRepeated checks how often a release is sent, and how its answers are read.
func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		before, after func(n int, verb string) error
		updates       int
		want, holder  string
	}{
		"every write fails":        {before: failing("update", 9), updates: releaseTries, want: "not released: boom", holder: "me"},
		"every request fails":      {before: func(int, string) error { return errBoom }, updates: releaseTries, want: "not released: boom", holder: "me"},
		"the first write fails":    {before: failing("update", 1), updates: 2},
		"the first answer is lost": {after: failing("update", 1), updates: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := newDirectLock(t).lead()
				with := func(hook func(int, string) error) func(string) error {
					return func(verb string) error {
						if hook == nil {
							return nil
						}
						return hook(d.leases.countOf("update"), verb)
					}
				}
				d.leases.setHooks(with(tc.before), with(tc.after))
				d.wantEnd(begin(func() error { return d.Update(t.Context(), resourcelock.LeaderElectionRecord{}) }), tc.want)
				assert.True(t, (errors.Is(d.Err(), ErrReleasing) && d.Healthy() == nil), "its error is %v and its health %v", d.Err(), d.Healthy())
				if n := d.leases.countOf("update"); n != tc.updates || d.api.holder() != tc.holder {
					t.Errorf("%d writes, and the holder is %q; want %d and %q", n, d.api.holder(), tc.updates, tc.holder)
				}
			})
		})
	}
}

// failing fails the first requests of a verb.
func failing(verb string, first int) func(int, string) error {
	return func(n int, request string) error {
		if request == verb && n <= first {
			return errBoom
		}
		return nil
	}
}

// TestReleaseOfALostLease checks that nothing is requested for a Lease that was lost meanwhile.
func TestReleaseOfALostLease(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newDirectLock(t).lead()
		d.loseLease()
		requests := len(d.leases.requests())
		err := d.releaseLease(t.Context())
		assert.True(t, errors.Is(err, ErrLost) && len(d.leases.requests()) == requests, "%v, and %d requests", err, len(d.leases.requests())-requests)
	})
}

// TestFailedAcquisition checks that a replica returns the error and does not lead if its request
// fails for another reason than a lost race.
func TestFailedAcquisition(t *testing.T) {
	t.Parallel()
	fail := func(verb string, answer error) func(*directLock) {
		return func(d *directLock) {
			d.leases.setHooks(func(request string) error {
				if request == verb {
					return answer
				}
				return nil
			}, nil)
		}
	}
	for name, tc := range map[string]struct {
		prepare func(*directLock)
		want    string
	}{
		"the write fails":            {fail("create", errBoom), "boom"},
		"the namespace is missing":   {fail("create", apierrors.NewNotFound(resource, "default")), "create the Lease default/it"},
		"a race, and the read fails": {func(d *directLock) { d.holdBy("other"); fail("get", errBoom)(d) }, "read the Lease: boom"},
		"the claim fails": {func(d *directLock) {
			claims := newConnection(newLeaseAPI())
			claims.fail()
			d.opts.Claims = claims
		}, "boom"},
		"the answer lacks a version": {func(d *directLock) { d.opts.Leases = unversionedLeases{d.leases} }, `resourceVersion "x" is not a number`},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := newDirectLock(t)
				tc.prepare(d)
				d.wantEnd(begin(func() error { return d.Create(t.Context(), mine) }), tc.want)
				assert.True(t, !d.leadership.isLeading(), "it leads")
			})
		})
	}
}

// unversionedLeases answers without a number as the version.
type unversionedLeases struct{ Leases }

func (u unversionedLeases) Create(ctx context.Context, lease *coordinationv1.Lease, o metav1.CreateOptions) (*coordinationv1.Lease, error) {
	answer, err := u.Leases.Create(ctx, lease, o)
	answer.ResourceVersion = "x"
	return answer, err
}

func (u unversionedLeases) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordinationv1.Lease, error) {
	answer, err := u.Leases.Get(ctx, name, o)
	answer.ResourceVersion = "x"
	return answer, err
}

// TestLostRace checks that a replica that was slower waits until the Lease is available, and
// leads then.
func TestLostRace(t *testing.T) {
	t.Parallel()
	held := func(d *directLock) { d.holdBy("other") }
	for name, tc := range map[string]struct {
		before, meanwhile func(*directLock)
		wait              time.Duration
	}{
		"it was created meanwhile": {func(*directLock) {}, held, 15 * time.Second},
		"it was acquired meanwhile": {func(d *directLock) { d.holdBy("") }, func(d *directLock) {
			d.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") })
		}, 15 * time.Second},
		"it was deleted meanwhile": {func(d *directLock) { d.holdBy("") }, func(d *directLock) { d.api.edit(nil) }, 0},
		"it is held, as it knows": {held, func(d *directLock) {
			if _, err := d.Confirm(d.t.Context()); err != nil {
				d.t.Error(err)
			}
		}, 15 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := newDirectLock(t)
				tc.before(d)
				assert.NoError(t, d.lease.readLease(t.Context()))
				tc.meanwhile(d)
				ended := begin(d.update)
				if tc.wait > 0 {
					advance(tc.wait - stepDelay)
					d.wantPending(ended)
					advance(2 * stepDelay)
				}
				d.wantEnd(ended, "")
				assert.True(t, d.leadership.isLeading() && d.api.holder() == "me", "it leads: %v, and the holder is %q", d.leadership.isLeading(), d.api.holder())
			})
		})
	}
}

// TestGetWaits checks that a replica that does not lead sees the Lease once it is available.
func TestGetWaits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		free func(*directLock)
		wait time.Duration // until it is seen
	}{
		"until it expires": {func(*directLock) {}, 15 * time.Second},
		"until it was not renewed": {func(d *directLock) {
			advance(10 * time.Second) // nothing but the live read after the expiry shows this
			d.api.edit(func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
		}, 20 * time.Second},
		"until another read shows its release": {func(d *directLock) {
			advance(1500 * time.Millisecond) // between two looks at the clock
			d.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("") })
			if _, err := d.Confirm(d.t.Context()); err != nil {
				d.t.Error(err)
			}
		}, 0},
		"until the host wakes up": {func(d *directLock) { advance(stepDelay); d.suspended.Store(int64(time.Minute)) }, checkPeriod},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				d := newDirectLock(t)
				d.holdBy("other")
				var record *resourcelock.LeaderElectionRecord
				ended := begin(func() (err error) { record, _, err = d.Get(t.Context()); return err })
				tc.free(d)
				if tc.wait > 0 {
					d.wantPending(ended)
					advance(tc.wait - 2*stepDelay)
					if tc.wait > checkPeriod {
						d.wantPending(ended)
					}
					advance(3 * stepDelay)
				}
				d.wantEnd(ended, "")
				assert.True(t, record.HolderIdentity == "" && !d.leadership.isLeading(),
					"it sees the holder %q, and leads: %v", record.HolderIdentity, d.leadership.isLeading())
			})
		})
	}
}

// TestWaitEnds checks that a wait ends with its context, and by a read that fails.
func TestWaitEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for name, call := range map[string]func(*directLock, context.Context) error{
			"Get":    func(d *directLock, ctx context.Context) error { _, _, err := d.Get(ctx); return err },
			"Update": func(d *directLock, ctx context.Context) error { return d.Update(ctx, mine) },
		} {
			t.Log(name)
			d := newDirectLock(t)
			d.holdBy("other")
			ctx, cancel := context.WithCancel(t.Context())
			ended := begin(func() error { return call(d, ctx) })
			d.wantPending(ended)
			requests := len(d.leases.requests())
			cancel()
			d.wantEnd(ended, "canceled")
			n := len(d.leases.requests())
			assert.True(t, n == requests, "%d requests after the end of the context", n-requests)

			d = newDirectLock(t)
			d.holdBy("other")
			ended = begin(func() error { return call(d, t.Context()) })
			advance(10 * time.Second)
			d.leases.fail()
			d.wantPending(ended)
			advance(6 * time.Second)
			d.wantEnd(ended, "boom")
			assert.True(t, !d.leadership.isLeading(), "it leads")
		}
	})
}

// TestFailedReads checks that an error of a read is returned.
func TestFailedReads(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newDirectLock(t)
		d.leases.fail()
		d.wantEnd(begin(d.get), "read the Lease: boom")
		d.leases.setHooks(nil, nil)
		err := d.get()
		assert.True(t, apierrors.IsNotFound(err), "without a Lease: %v", err)
		leads, err := d.lead().Confirm(t.Context())
		assert.True(t, leads && err == nil, "it leads: %v, %v; want that it does", leads, err)
		d.leases.fail()
		leads, err = d.Confirm(t.Context())
		assert.True(t, !leads && errors.Is(err, errBoom) && d.leadership.isLeading(), "it leads: %v, %v; want that it does not know, and no consequence", leads, err)
		d.leases.setHooks(nil, nil)
		d.opts.Leases = unversionedLeases{d.leases}
		d.wantEnd(begin(d.get), `resourceVersion "x" is not a number`)
	})
}

// TestCallsOfALeader checks what a leader refuses, that it need not be warm again, and when
// it is unhealthy.
func TestCallsOfALeader(t *testing.T) { inBubble(t, checkCallsOfALeader) }

func checkCallsOfALeader(t *testing.T) {
	warm := 0
	d := newDirectLock(t, func(o *Options) { o.Warm = func(context.Context) error { warm++; return nil } })
	assert.ErrorIs(t, "a release before it leads", d.Update(t.Context(), resourcelock.LeaderElectionRecord{}), ErrNotLeading)
	err := d.renewLease(t.Context())
	assert.True(t, errors.Is(err, ErrNotLeading) && d.Healthy() == nil, "a renewal before it leads: %v; healthy: %v", err, d.Healthy())
	_ = d.get()
	d.lead()
	_ = d.get()
	assert.True(t, warm == 1, "it waited %d times to be warm, want once", warm)
	err = d.Create(t.Context(), mine)
	assert.True(t, err != nil && d.Healthy() == nil, "a leader creates its Lease: %v; healthy: %v", err, d.Healthy())
	advance(DefaultSettings().guardTerm())
	assert.ErrorIs(t, "health, not renewed", d.Healthy(), ErrLapsed)
	d.loseLease()
	for name, err := range map[string]error{"Get": d.get(), "Create": d.Create(t.Context(), mine), "Update": d.update(), "Healthy": d.Healthy()} {
		assert.ErrorIs(t, name+" after the loss", err, ErrLost)
	}
	assert.True(t, warm == 1, "it waited to be warm after the loss")
}

// TestLossBeforeTheAnswer checks that a Lease that was lost before the answer arrived that it
// was acquired is lost.
func TestLossBeforeTheAnswer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newDirectLock(t)
		d.leases.setHooks(nil, func(verb string) error {
			if verb == "create" {
				d.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("stranger") })
				return d.lease.readLease(t.Context())
			}
			return nil
		})
		_ = d.Create(t.Context(), mine)
		assert.True(t, !d.leadership.isLeading() && errors.Is(d.Err(), ErrLost), "it leads: %v, and its error is %v", d.leadership.isLeading(), d.Err())
	})
}

// TestLateClaim checks that a Lease is not renewed without the cluster's claim.
func TestLateClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		claims := newConnection(newLeaseAPI())
		d := newDirectLock(t, func(o *Options) { o.Claims = claims }).lead()
		claims.fail()
		advance(2 * DefaultSettings().Lease)
		d.wantEnd(begin(d.update), "")
		advance(time.Second)
		d.wantEnd(begin(d.update), "boom")
	})
}

// TestRequestsLeaveNothing checks that each request has a limit, and that nothing of it goes on.
func TestRequestsLeaveNothing(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		d := newDirectLock(t).lead()
		_ = d.get()
		_ = d.update()
		requests := d.leases.requests()
		assert.Equal(t, "requests", len(requests), 3)
		for n, ctx := range requests {
			_, limited := ctx.Deadline()
			assert.True(t, limited && ctx.Err() != nil, "request %d: limited %v, ended: %v", n, limited, ctx.Err())
		}
	})
}

// TestStandingByIsLogged checks that a replica logs once for which leader it stands by.
func TestStandingByIsLogged(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var lines []string
		d := newDirectLock(t, func(o *Options) {
			o.Log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
		})
		d.holdBy("other")
		for _, holder := range []string{"other", "other", "third", "", "third", "me"} {
			d.api.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &holder })
			assert.ReportError(t, assert.ErrorOf(d.Confirm(t.Context())))
		}
		assert.Require(t, len(lines) == 3, "logged %q, want a line for each change of the leader", lines)
		for n, leader := range []string{"other", "third", "third"} {
			assert.True(t, strings.Contains(lines[n], fmt.Sprintf("%q", leader)), "line %d is %s, want that %s leads", n, lines[n], leader)
		}
	})
}

// TestObservedTerms checks how long a replica waits for a holder whose Lease lacks a duration, or has
// one that differs from the durations that Drover writes.
func TestObservedTerms(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		seconds *int32
		want    time.Duration
	}{
		"none":     {nil, 15 * time.Second},
		"shorter":  {new(int32(1)), 15 * time.Second},
		"longer":   {new(int32(20)), 20 * time.Second},
		"too long": {new(int32(1e6)), maxTerm},
	} {
		s := observedLease{}
		lease := &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("a"), LeaseDurationSeconds: tc.seconds}}
		if !s.updateIfNewer(lease, 9, time.Second, 15*time.Second) || s.updateIfNewer(lease, 9, 2*time.Second, 15*time.Second) || s.updateLive(lease, 9, 9, 2*time.Second, 15*time.Second) {
			t.Errorf("%s: the first is news, and nothing after it", name)
		}
		at := s.availableAt(15 * time.Second)
		assert.True(t, at == time.Second+tc.want, "%s: available at %s, want %s after it changed", name, at, tc.want)
		n := s.transitions()
		assert.True(t, n == 0, "%s: %d transitions", name, n)
	}
	assert.Equal(t, "without a Lease", (&observedLease{}).holderTerm(time.Second), time.Second)
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{"12": 12, "18446744073709551615": 1<<64 - 1, "0x12": 0, "x": 0, "": 0} {
		got, err := parseVersion(text)
		assert.True(t, got == want && (err == nil) == (want > 0), "%q: %d, %v", text, got, err)
	}
}
