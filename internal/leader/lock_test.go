// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"cloudnative.tw/drover/test/assert"
)

// These tests run on a fake clock (synctest), with client-go's elector.

// inBubble runs a test on a fake clock, beside others.
func inBubble(t *testing.T, test func(*testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// handoverLimit is the time limit for a handover; an expiry takes longer.
const handoverLimit = 10 * time.Millisecond

// stepDelay is the delay that waiting in steps may add.
const stepDelay = 100 * time.Millisecond

// advance advances the clock.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantLeader(t *testing.T, want *replica, all ...*replica) {
	t.Helper()
	for _, r := range all {
		if r.isLeading() != (r == want) || r.mayAct(t) != (r == want) {
			t.Fatalf("%s leads: %v, may act: %v; want %v", r.Identity(), r.isLeading(), r.mayAct(t), r == want)
		}
	}
}

// startThree starts a leader and two standbys.
func startThree(t *testing.T) (api *leaseAPI, leader, first, second *replica) {
	t.Helper()
	api = newLeaseAPI()
	leader = startReplica(t, api, "leader", DefaultSettings())
	advance(handoverLimit)
	first, second = startReplica(t, api, "one", DefaultSettings()), startReplica(t, api, "two", DefaultSettings())
	advance(5 * time.Second)
	wantLeader(t, leader, leader, first, second)
	return api, leader, first, second
}

func TestReleasedLeaseIsAcquiredAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, leader, one, two := startThree(t)
		leader.stop()
		advance(handoverLimit)
		next, last := one, two
		if two.isLeading() {
			next, last = two, one
		}
		wantLeader(t, next, leader, one, two)
		// The replica that was slower is not slower a second time.
		next.stop()
		advance(handoverLimit)
		wantLeader(t, last, leader, one, two)
		lease, err := api.get()
		assert.True(t, err == nil && (*lease.Spec.LeaseTransitions == 4 || *lease.Spec.LeaseTransitions == 2),
			"the Lease is %+v, %v: want it to count the transitions", lease, err)
	})
}

func TestExpiredLeaseIsAcquired(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, leader, one, two := startThree(t)
		lease, _ := api.get()
		leader.kill()
		due := time.Until(lease.Spec.RenewTime.Add(DefaultSettings().Lease))
		advance(due - stepDelay)
		wantLeader(t, nil, leader, one, two)
		advance(2 * stepDelay)
		assert.True(t, one.isLeading() != two.isLeading(), "one leads: %v, two leads: %v; want either", one.isLeading(), two.isLeading())
		assert.True(t, one.Guard().Epoch()+two.Guard().Epoch() > leader.Guard().Epoch(), "the epoch did not grow")
	})
}

// TestRenewalsWithinASecond checks that a renewal counts even within the second of
// the previous one.
func TestRenewalsWithinASecond(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		s := Settings{Lease: 3 * time.Second, Renew: 400 * time.Millisecond, Retry: 100 * time.Millisecond}
		leader := startReplica(t, api, "leader", s)
		advance(handoverLimit)
		standby := startReplica(t, api, "standby", s)
		advance(950*time.Millisecond - handoverLimit)
		lease, _ := api.get()
		leader.kill()
		advance(time.Until(lease.Spec.RenewTime.Add(s.Lease)) - stepDelay/2)
		assert.True(t, !standby.isLeading(), "the Lease was acquired less than 3 s after the last renewal: it began a second too early")
		advance(time.Second)
		wantLeader(t, standby, leader, standby)
	})
}

func TestDeletionByHand(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, leader, one, two := startThree(t)
		before := leader.Guard().Epoch()
		api.edit(nil)
		advance(handoverLimit)
		wantLeader(t, nil, leader, one, two)
		assert.True(t, errors.Is(leader.Err(), ErrLost) && leader.Healthy() != nil,
			"the leader's errors are %v, %v: want that the Lease was lost", leader.Err(), leader.Healthy())
		advance(10 * time.Second)
		wantLeader(t, nil, leader, one, two) // a replica that observed the holder waits
		advance(5 * time.Second)
		assert.True(t, one.isLeading() != two.isLeading(), "one leads: %v, two leads: %v; want either", one.isLeading(), two.isLeading())
		after := max(one.Guard().Epoch(), two.Guard().Epoch())
		assert.True(t, after > before, "the epoch is %d after %d: want it to grow although the Lease is new", after, before)
	})
}

func TestForeignHolder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader := startReplica(t, api, "leader", DefaultSettings())
		advance(time.Second)
		ctx, _, leave, err := leader.Guard().Enter(t.Context())
		assert.NoError(t, err)
		defer leave()
		api.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("stranger") })
		advance(handoverLimit)
		assert.True(t, ctx.Err() != nil && !leader.mayAct(t), "a call goes on, or may start, under another holder's Lease")
		select {
		case <-leader.Lost():
		default:
			t.Error("the loss was not reported")
		}
		advance(time.Minute)
		assert.Equal(t, "the Lease is held by: want it left alone", api.holder(), "stranger")
	})
}

// TestLeaderGoesOn checks that leadership outlives a short disconnection and a change that keeps the holder.
func TestLeaderGoesOn(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(api *leaseAPI, leader *replica){
		"disconnected for less than a request may take": func(_ *leaseAPI, leader *replica) {
			leader.conn.disconnect()
			advance(DefaultSettings().RequestTimeout() - stepDelay)
			leader.conn.reconnect()
		},
		"labelled by hand": func(api *leaseAPI, _ *replica) {
			for range 10 {
				api.edit(func(lease *coordinationv1.Lease) { lease.Labels = map[string]string{"a": time.Now().Format("05.000")} })
				advance(1700 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api, leader, one, two := startThree(t)
				disturb(api, leader)
				advance(5 * time.Second)
				wantLeader(t, leader, leader, one, two)
			})
		})
	}
}

func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(t *testing.T, api *leaseAPI, r *replica)
		why    string
	}{
		"a call in flight": {before: func(t *testing.T, _ *leaseAPI, r *replica) {
			_, _, leave, err := r.Guard().Enter(t.Context())
			assert.NoError(t, err)
			t.Cleanup(leave)
		}, why: "have not ended"},
		"a successor": {before: func(_ *testing.T, api *leaseAPI, r *replica) {
			r.conn.disconnect()
			api.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("successor") })
			advance(handoverLimit)
			r.conn.reconnect()
		}, why: "successor"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := newLeaseAPI()
				r := startReplica(t, api, "leader", DefaultSettings())
				advance(time.Second)
				c.before(t, api, r)
				want := api.holder()
				// As client-go does it: read, and clear any holder.
				_, _, _ = r.Get(t.Context())
				err := r.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})
				assert.ErrorSays(t, "the release", err, c.why)
				assert.Equal(t, "the Lease is held by", api.holder(), want)
			})
		})
	}
}

// TestLostResponse covers a write that acquires the Lease and whose response is lost.
func TestLostResponse(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		r := startReplica(t, api, "leader", DefaultSettings())
		r.conn.setFaults(func(w *connection) { w.responseDelay = DefaultSettings().RequestTimeout() + time.Second })
		advance(10 * time.Second)
		assert.True(t, !r.isLeading(), "it leads without an answer")
		r.conn.setFaults(func(w *connection) { w.responseDelay = 0 })
		advance(5 * time.Second)
		wantLeader(t, r, r)
	})
}

// TestSlowAPI checks that replicas lead although each answer is slow: the leader goes on, and a standby
// succeeds it. That one's first renewal takes three requests, two of them about the claim.
func TestSlowAPI(t *testing.T) {
	for name, delay := range map[string]time.Duration{
		"1 s":                           time.Second,
		"a third of the renew deadline": DefaultSettings().Renew/3 - stepDelay,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api, _ := newCluster()
				slow := func(o *Options) {
					c := o.Leases.(*connection) //nolint:forcetypeassert // startReplica made it.
					c.setFaults(func(c *connection) { c.responseDelay = delay })
				}
				leader := startReplica(t, api, "leader", DefaultSettings(), slow)
				advance(time.Minute)
				standby := startReplica(t, api, "standby", DefaultSettings(), slow)
				for range 10 * time.Minute / stepDelay {
					advance(stepDelay)
					wantLeader(t, leader, leader, standby)
				}
				leader.stop()
				advance(time.Minute)
				wantLeader(t, standby, leader, standby)
			})
		})
	}
}

// TestLastTryIsKept checks that a leader that could not renew the Lease knows why, and logs it once.
func TestLastTryIsKept(t *testing.T) {
	for name, c := range map[string]struct {
		fault func(leases, claims *connection)
		want  string
	}{
		"no answer": {func(leases, _ *connection) { leases.disconnect() }, "did not answer within 3s"},
		"a full store": {func(leases, _ *connection) {
			leases.setHooks(func(string) error { return errors.New("etcdserver: mvcc: database space exceeded") }, nil)
		}, "database space exceeded"},
		"no answer about the claim": {func(_, claims *connection) { claims.disconnect() }, "the cluster's claim kube-system/drover-leader: "},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				var lines []string
				api, _ := newCluster()
				claims := newConnection(api.claims)
				leader := startReplica(t, api, "leader", DefaultSettings(), func(o *Options) {
					o.Claims = claims
					o.Log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
				})
				advance(time.Second)
				assert.NoError(t, leader.TryErr())
				c.fault(leader.conn, claims)
				<-leader.done
				assert.ErrorSays(t, "the last try", leader.TryErr(), c.want)
				count := 0
				for _, line := range lines {
					if strings.Contains(line, "was not renewed") && strings.Contains(line, c.want) {
						count++
					}
				}
				assert.True(t, count == 1, "logged %q: want one line that says %q", lines, c.want)
			})
		})
	}
}

// TestFailedWatchIsLoggedOnce checks that a process which waits for an API server that does not answer logs once
// that it cannot watch the Lease.
func TestFailedWatchIsLoggedOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		count := 0
		startReplica(t, newLeaseAPI(), "waits", DefaultSettings(), func(o *Options) {
			o.Leases.(*connection).disconnect() //nolint:forcetypeassert // startReplica made it.
			o.Log = funcr.New(func(_, line string) {
				if strings.Contains(line, "cannot be watched") {
					count++
				}
			}, funcr.Options{})
		})
		advance(time.Minute)
		assert.True(t, count == 1, "logged %d times that the Lease cannot be watched, want once", count)
	})
}

func TestDisconnectedLeader(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		_, leader, one, two := startThree(t)
		ctx, _, leave, err := leader.Guard().Enter(t.Context())
		assert.NoError(t, err)
		defer leave()
		leader.conn.disconnect()
		for ctx.Err() == nil {
			assert.Require(t, !one.isLeading() && !two.isLeading(), "another replica leads while a call goes on")
			advance(stepDelay)
		}
		assert.True(t, !leader.mayAct(t), "a leader that is disconnected may still act")
		advance(DefaultSettings().Lease)
		leader.conn.reconnect()
		advance(time.Second)
		assert.True(t, one.isLeading() != two.isLeading() && !leader.isLeading(),
			"leader %v, one %v, two %v: want one of the latter to lead", leader.isLeading(), one.isLeading(), two.isLeading())
	})
}

func TestDeadHolder(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		first := startReplica(t, api, "up_1", DefaultSettings())
		advance(time.Second)
		first.kill()
		second := startReplica(t, api, "up_2", DefaultSettings(), func(o *Options) {
			o.HolderGone = func(holder string) bool { return holder == "up_1" }
		})
		advance(handoverLimit)
		wantLeader(t, second, second)
	})
}

// startPair starts a leader and a standby.
func startPair(t *testing.T, api *leaseAPI) (leader, standby *replica) {
	t.Helper()
	leader = startReplica(t, api, "leader", DefaultSettings())
	advance(time.Second)
	standby = startReplica(t, api, "standby", DefaultSettings())
	advance(5 * time.Second)
	return leader, standby
}

// checkNeverBoth advances the clock until the standby may act, and checks that never
// both may.
func checkNeverBoth(t *testing.T, leader, standby *replica) {
	t.Helper()
	for range 400 {
		advance(stepDelay)
		assert.Require(t, !leader.mayAct(t) || !standby.mayAct(t), "two may act at once")
	}
	assert.True(t, standby.mayAct(t), "the standby never led")
}

// TestEditedLeaseOfDisconnectedLeader checks that the guard of a disconnected leader
// closes before another one's opens, even if the Lease is changed by hand. A standby that was
// disconnected, and so may have missed renewals, waits as if the last one had been just now.
func TestEditedLeaseOfDisconnectedLeader(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		unseen time.Duration // how long the standby was disconnected
		edit   func(api *leaseAPI)
	}{
		"deleted":         {0, func(api *leaseAPI) { api.edit(nil) }},
		"deleted, unseen": {12 * time.Second, func(api *leaseAPI) { api.edit(nil) }},
		"shortened": {0, func(api *leaseAPI) {
			api.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(1)) })
		}},
		"created again": {0, func(api *leaseAPI) {
			api.edit(nil)
			_, _ = api.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "it"}})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				api := newLeaseAPI()
				leader, standby := startPair(t, api)
				if tc.unseen > 0 {
					standby.conn.disconnect()
					advance(tc.unseen)
				}
				leader.conn.disconnect()
				tc.edit(api)
				standby.conn.reconnect()
				checkNeverBoth(t, leader, standby)
			})
		})
	}
}

// TestStoppedWhileAcquiring checks that a replica that is stopped before it knows that
// it acquired the Lease releases it.
func TestStoppedWhileAcquiring(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one := startPair(t, api)
		two := startReplica(t, api, "two", DefaultSettings())
		advance(5 * time.Second)
		two.conn.setFaults(func(w *connection) { w.requestDelay = 50 * time.Millisecond }) // this one is faster
		one.conn.setFaults(func(w *connection) { w.responseDelay = 20 * time.Millisecond })
		go leader.stop()
		advance(10 * time.Millisecond)
		one.stop()
		two.conn.setFaults(func(w *connection) { w.requestDelay = 0 })
		advance(2 * time.Second)
		wantLeader(t, two, leader, one, two)
	})
}

// TestColdStandby checks that a replica that could not act does not compete for the
// Lease.
func TestColdStandby(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api := newLeaseAPI()
		warm := make(chan struct{})
		cold := startReplica(t, api, "cold", DefaultSettings(), func(o *Options) {
			o.Warm = func(ctx context.Context) error {
				select {
				case <-warm:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		advance(time.Minute)
		wantLeader(t, nil, cold)
		close(warm)
		advance(handoverLimit)
		wantLeader(t, cold, cold)
	})
}

// TestNeverTwo starts, stops and disconnects replicas at random, and checks all the
// time that no two may act at once.
func TestNeverTwo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { checkNeverTwo(t, rand.New(rand.NewPCG(seed, 1))) }) //nolint:gosec // The same chances every time.
		})
	}
}

func checkNeverTwo(t *testing.T, chance *rand.Rand) {
	api := newLeaseAPI()
	up := make([]*replica, 3)
	for n := range up {
		up[n] = startReplica(t, api, fmt.Sprint("r", n), DefaultSettings())
	}
	var last uint64
	terms := map[uint64]bool{}
	for step := range 3000 {
		advance(100 * time.Millisecond)
		var acting []string
		for _, r := range up {
			if !r.mayAct(t) {
				continue
			}
			acting = append(acting, r.Identity())
			if epoch := r.Guard().Epoch(); epoch < last {
				t.Fatalf("epoch %d acts after %d", epoch, last)
			} else {
				last = epoch
				terms[epoch] = true
			}
		}
		assert.Require(t, len(acting) <= 1, "%v may act at once", acting)
		if step%30 == 0 {
			n := chance.IntN(len(up))
			up[n] = disturbReplica(t, api, up[n], chance, fmt.Sprintf("r%d-%d", n, step))
		}
	}
	assert.True(t, len(terms) >= 3, "leadership moved %d times only", len(terms))
}

func disturbReplica(t *testing.T, api *leaseAPI, r *replica, chance *rand.Rand, name string, change ...func(*Options)) *replica {
	some := time.Duration(chance.Int64N(int64(2 * time.Second)))
	switch over := r.Err() != nil; chance.IntN(6) {
	case 0:
		r.conn.disconnect()
	case 1:
		r.conn.setFaults(func(w *connection) { w.responseDelay = some })
	case 2:
		r.conn.setFaults(func(w *connection) { w.requestDelay = some })
	case 3:
		r.kill()
		return startReplica(t, api, name, DefaultSettings(), change...)
	default:
		r.conn.setFaults(func(w *connection) { w.disconnected, w.responseDelay, w.requestDelay = false, 0, 0 })
		if over {
			r.stop()
			return startReplica(t, api, name, DefaultSettings(), change...)
		}
	}
	return r
}

// TestOnlyRenewalProvesActivity checks that only a renewal proves that the claim was
// renewed.
func TestOnlyRenewalProvesActivity(t *testing.T) {
	t.Parallel()
	at := func(second int) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Unix(int64(second), 0)} }
	spec := coordinationv1.LeaseSpec{HolderIdentity: new("a"), AcquireTime: at(1), RenewTime: at(2), LeaseDurationSeconds: new(int32(20))}
	for name, c := range map[string]struct {
		change func(*coordinationv1.Lease)
		active bool
	}{
		"renewed": {func(l *coordinationv1.Lease) { l.Spec.RenewTime = at(3) }, true},
		"acquired": {func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = new("b"), at(3), at(3)
		}, false},
		"acquired again":         {func(l *coordinationv1.Lease) { l.Spec.AcquireTime, l.Spec.RenewTime = at(3), at(3) }, false},
		"released":               {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Spec.RenewTime = new(""), at(3) }, false},
		"edited by hand":         {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(30)) }, false},
		"deleted and made again": {func(l *coordinationv1.Lease) { l.UID, l.Spec.RenewTime = "2", at(3) }, false},
	} {
		s, lease := observedLease{}, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: spec}
		s.updateIfNewer(lease, 1, time.Second, time.Minute)
		next := lease.DeepCopy()
		c.change(next)
		s.updateIfNewer(next, 2, 2*time.Second, time.Minute)
		assert.Equal(t, name+": a holder was observed as active", s.renewedAt != 0, c.active)
	}
}

func TestObservedLeaseKeepsNewest(t *testing.T) {
	t.Parallel()
	lease := func(holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "it"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(20))},
		}
	}
	const leaseDuration = 15 * time.Second
	s := observedLease{}
	s.updateIfNewer(lease("a"), 9, time.Second, leaseDuration)
	assert.True(t, !s.updateIfNewer(lease("old"), 8, 2*time.Second, leaseDuration) && s.holder() == "a", "an older Lease was recorded: %q", s.holder())
	s.updateIfNewer(lease("a"), 10, 3*time.Second, leaseDuration)
	assert.Equal(t, "available at: want the holder's 20 s from the last change of the spec", s.availableAt(leaseDuration), 21*time.Second)
	s.updateIfNewer(lease("b"), 11, 4*time.Second, leaseDuration)
	assert.True(t, !s.updateLive(nil, 10, 10, 5*time.Second, leaseDuration), "a live read was recorded although something newer was observed meanwhile")
	assert.True(t, s.updateLive(lease("restored"), 5, 11, 6*time.Second, leaseDuration) && s.holder() == "restored",
		"a live read of a restored cluster was not recorded")
	s.updateLive(nil, 5, 5, 7*time.Second, leaseDuration)
	assert.Equal(t, "available at: want the wait for the holder of a deleted Lease", s.availableAt(leaseDuration), 27*time.Second)
}
