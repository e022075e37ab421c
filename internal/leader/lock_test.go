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

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// These tests run on a fake clock (synctest), with client-go's elector.

// atOnce is the time limit for a handover; an expiry takes longer.
const atOnce = 10 * time.Millisecond

// lag is the delay that waiting in steps may add.
const lag = 100 * time.Millisecond

// pass advances the clock.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func wantLeader(t *testing.T, want *replica, all ...*replica) {
	t.Helper()
	for _, r := range all {
		if r.leads() != (r == want) || r.mayAct(t) != (r == want) {
			t.Fatalf("%s leads: %v, may act: %v; want %v", r.Identity(), r.leads(), r.mayAct(t), r == want)
		}
	}
}

// three starts a leader and two standbys.
func three(t *testing.T, api *leaseAPI) (leader, one, two *replica) {
	t.Helper()
	leader = start(t, api, "leader", DefaultSettings())
	pass(atOnce)
	one, two = start(t, api, "one", DefaultSettings()), start(t, api, "two", DefaultSettings())
	pass(5 * time.Second)
	wantLeader(t, leader, leader, one, two)
	return leader, one, two
}

func TestReleaseIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		leader.stop()
		pass(atOnce)
		next, last := one, two
		if two.leads() {
			next, last = two, one
		}
		wantLeader(t, next, leader, one, two)
		// The replica that was slower is not slower a second time.
		next.stop()
		pass(atOnce)
		wantLeader(t, last, leader, one, two)
		lease, err := api.get()
		if err != nil || *lease.Spec.LeaseTransitions != 4 && *lease.Spec.LeaseTransitions != 2 {
			t.Errorf("the Lease is %+v, %v: want it to count the transitions", lease, err)
		}
	})
}

func TestExpiryIsTakenWhenItFallsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		lease, _ := api.get()
		leader.kill()
		due := time.Until(lease.Spec.RenewTime.Add(DefaultSettings().Lease))
		pass(due - lag)
		wantLeader(t, nil, leader, one, two)
		pass(2 * lag)
		if one.leads() == two.leads() {
			t.Errorf("one leads: %v, two leads: %v; want either", one.leads(), two.leads())
		}
		if one.Guard().Epoch()+two.Guard().Epoch() <= leader.Guard().Epoch() {
			t.Error("the epoch did not grow")
		}
	})
}

// TestRenewalsWithinASecond checks that a renewal counts even within the second of
// the previous one.
func TestRenewalsWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		s := Settings{
			Lease: 3 * time.Second, Renew: 400 * time.Millisecond, Retry: 100 * time.Millisecond,
			Request: 100 * time.Millisecond, Margin: 100 * time.Millisecond,
		}
		leader := start(t, api, "leader", s)
		pass(atOnce)
		standby := start(t, api, "standby", s)
		pass(950*time.Millisecond - atOnce)
		lease, _ := api.get()
		leader.kill()
		pass(time.Until(lease.Spec.RenewTime.Add(s.Lease)) - lag/2)
		if standby.leads() {
			t.Error("the Lease was taken less than 3 s after the last renewal: it began a second too early")
		}
		pass(time.Second)
		wantLeader(t, standby, leader, standby)
	})
}

func TestDeletionByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		before := leader.Guard().Epoch()
		api.edit(nil)
		pass(atOnce)
		wantLeader(t, nil, leader, one, two)
		if !errors.Is(leader.Err(), ErrLost) || leader.Healthy() == nil {
			t.Errorf("the leader's errors are %v, %v: want that the Lease was lost", leader.Err(), leader.Healthy())
		}
		pass(10 * time.Second)
		wantLeader(t, nil, leader, one, two) // a replica that saw the holder waits
		pass(5 * time.Second)
		if one.leads() == two.leads() {
			t.Errorf("one leads: %v, two leads: %v; want either", one.leads(), two.leads())
		}
		if after := max(one.Guard().Epoch(), two.Guard().Epoch()); after <= before {
			t.Errorf("the epoch is %d after %d: want it to grow although the Lease is new", after, before)
		}
	})
}

func TestForeignHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader := start(t, api, "leader", DefaultSettings())
		pass(time.Second)
		ctx, _, leave, err := leader.Guard().Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		api.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("somebody") })
		pass(atOnce)
		if ctx.Err() == nil || leader.mayAct(t) {
			t.Error("a call goes on, or may start, under somebody else's Lease")
		}
		select {
		case <-leader.Lost():
		default:
			t.Error("nobody was told of the loss")
		}
		pass(time.Minute)
		if api.holder() != "somebody" {
			t.Errorf("the Lease is held by %q: want it left alone", api.holder())
		}
	})
}

// TestLabelledByHand checks that a change that keeps the holder is not a loss.
func TestLabelledByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		for range 10 {
			api.edit(func(lease *coordinationv1.Lease) { lease.Labels = map[string]string{"a": time.Now().Format("05.000")} })
			pass(1700 * time.Millisecond)
		}
		wantLeader(t, leader, leader, one, two)
	})
}

func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(t *testing.T, api *leaseAPI, r *replica)
		why    string
	}{
		"a call in flight": {before: func(t *testing.T, _ *leaseAPI, r *replica) {
			_, _, leave, err := r.Guard().Enter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(leave)
		}, why: "have not ended"},
		"a successor": {before: func(_ *testing.T, api *leaseAPI, r *replica) {
			r.wire.set(func(w *wire) { w.cut = true })
			api.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("successor") })
			pass(atOnce)
			r.wire.set(func(w *wire) { w.cut = false })
		}, why: "successor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := newLeaseAPI()
				r := start(t, api, "leader", DefaultSettings())
				pass(time.Second)
				c.before(t, api, r)
				want := api.holder()
				// As client-go does it: read, and clear any holder.
				_, _, _ = r.Get(t.Context())
				err := r.Update(t.Context(), resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1})
				if err == nil || !strings.Contains(err.Error(), c.why) {
					t.Errorf("the release ended with %v: want an error that says %q", err, c.why)
				}
				if api.holder() != want {
					t.Errorf("the Lease is held by %q, want %q", api.holder(), want)
				}
			})
		})
	}
}

// TestLostAnswer covers a write that takes the Lease and whose answer is lost.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		r := start(t, api, "leader", DefaultSettings())
		r.wire.set(func(w *wire) { w.late = 2 * time.Second })
		pass(10 * time.Second)
		if r.leads() {
			t.Error("it leads without an answer")
		}
		r.wire.set(func(w *wire) { w.late = 0 })
		pass(5 * time.Second)
		wantLeader(t, r, r)
	})
}

func TestCutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		ctx, _, leave, err := leader.Guard().Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		leader.wire.set(func(w *wire) { w.cut = true })
		for ctx.Err() == nil {
			if one.leads() || two.leads() {
				t.Fatal("somebody else leads while a call goes on")
			}
			pass(lag)
		}
		if leader.mayAct(t) {
			t.Error("a leader that is cut off may still act")
		}
		pass(DefaultSettings().Lease)
		leader.wire.set(func(w *wire) { w.cut = false })
		pass(time.Second)
		if one.leads() == two.leads() || leader.leads() {
			t.Errorf("leader %v, one %v, two %v: want one of the latter to lead", leader.leads(), one.leads(), two.leads())
		}
	})
}

// TestShortCut checks that a leader that reconnects in time keeps leading.
func TestShortCut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one, two := three(t, api)
		leader.wire.set(func(w *wire) { w.cut = true })
		pass(5 * time.Second)
		leader.wire.set(func(w *wire) { w.cut = false })
		pass(5 * time.Second)
		wantLeader(t, leader, leader, one, two)
	})
}

func TestDeadHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		first := start(t, api, "up_1", DefaultSettings())
		pass(time.Second)
		first.kill()
		second := start(t, api, "up_2", DefaultSettings(), func(o *Options) {
			o.HolderGone = func(holder string) bool { return holder == "up_1" }
		})
		pass(atOnce)
		wantLeader(t, second, second)
	})
}

// standbyOf starts a leader and a standby.
func standbyOf(t *testing.T, api *leaseAPI) (leader, standby *replica) {
	t.Helper()
	leader = start(t, api, "leader", DefaultSettings())
	pass(time.Second)
	standby = start(t, api, "standby", DefaultSettings())
	pass(5 * time.Second)
	return leader, standby
}

// neverBoth advances the clock until the standby may act, and checks that never
// both may.
func neverBoth(t *testing.T, leader, standby *replica) {
	t.Helper()
	for range 400 {
		pass(lag)
		if leader.mayAct(t) && standby.mayAct(t) {
			t.Fatal("two may act at once")
		}
	}
	if !standby.mayAct(t) {
		t.Error("the standby never led")
	}
}

// TestHandsOnTheLeaseOfOneCutOff checks that the guard of a leader that is cut off
// closes before another one's opens, even if the Lease is changed by hand.
func TestHandsOnTheLeaseOfOneCutOff(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(api *leaseAPI){
		"deleted": func(api *leaseAPI) { api.edit(nil) },
		"shortened": func(api *leaseAPI) {
			api.edit(func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(1)) })
		},
		"made anew": func(api *leaseAPI) {
			api.edit(nil)
			_, _ = api.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "it"}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api := newLeaseAPI()
				leader, standby := standbyOf(t, api)
				leader.wire.set(func(w *wire) { w.cut = true })
				edit(api)
				neverBoth(t, leader, standby)
			})
		})
	}
}

// TestDeletedUnseen checks that a standby that was cut off, and so may have missed
// renewals, waits as if the last renewal had been just now.
func TestDeletedUnseen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, standby := standbyOf(t, api)
		standby.wire.set(func(w *wire) { w.cut = true })
		pass(12 * time.Second)
		leader.wire.set(func(w *wire) { w.cut = true })
		api.edit(nil)
		standby.wire.set(func(w *wire) { w.cut = false })
		neverBoth(t, leader, standby)
	})
}

// TestStoppedWhileTaking checks that a replica that is stopped before it knows that
// it took the Lease releases it.
func TestStoppedWhileTaking(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, one := standbyOf(t, api)
		two := start(t, api, "two", DefaultSettings())
		pass(5 * time.Second)
		two.wire.set(func(w *wire) { w.slow = 50 * time.Millisecond }) // this one is faster
		one.wire.set(func(w *wire) { w.late = 20 * time.Millisecond })
		go leader.stop()
		pass(10 * time.Millisecond)
		one.stop()
		two.wire.set(func(w *wire) { w.slow = 0 })
		pass(2 * time.Second)
		wantLeader(t, two, leader, one, two)
	})
}

// TestReleaseWhoseAnswerIsLost checks that the Lease counts as released.
func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader, standby := standbyOf(t, api)
		leader.wire.set(func(w *wire) { w.late = 2 * time.Second })
		_ = leader.Update(t.Context(), resourcelock.LeaderElectionRecord{})
		pass(lag)
		wantLeader(t, standby, leader, standby)
		if !errors.Is(leader.Err(), ErrShut) || leader.Healthy() != nil {
			t.Errorf("it says %v, and of its health %v", leader.Err(), leader.Healthy())
		}
	})
}

// TestColdStandby checks that a replica that could not act does not compete for the
// Lease.
func TestColdStandby(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		warm := make(chan struct{})
		cold := start(t, api, "cold", DefaultSettings(), func(o *Options) {
			o.Warm = func(ctx context.Context) error {
				select {
				case <-warm:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		pass(time.Minute)
		wantLeader(t, nil, cold)
		close(warm)
		pass(atOnce)
		wantLeader(t, cold, cold)
	})
}

// TestNeverTwo starts, stops and disconnects replicas at random, and checks all the
// time that no two may act at once.
func TestNeverTwo(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { neverTwo(t, rand.New(rand.NewPCG(seed, 1))) }) //nolint:gosec // The same chances every time.
		})
	}
}

func neverTwo(t *testing.T, chance *rand.Rand) {
	api := newLeaseAPI()
	up := make([]*replica, 3)
	for n := range up {
		up[n] = start(t, api, fmt.Sprint("r", n), DefaultSettings())
	}
	var last uint64
	terms := map[uint64]bool{}
	for step := range 3000 {
		pass(100 * time.Millisecond)
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
		if len(acting) > 1 {
			t.Fatalf("%v may act at once", acting)
		}
		if step%30 == 0 {
			n := chance.IntN(len(up))
			up[n] = disturb(t, api, up[n], chance, fmt.Sprintf("r%d-%d", n, step))
		}
	}
	if len(terms) < 3 {
		t.Errorf("the lead moved %d times only", len(terms))
	}
}

func disturb(t *testing.T, api *leaseAPI, r *replica, chance *rand.Rand, name string, change ...func(*Options)) *replica {
	some := time.Duration(chance.Int64N(int64(2 * time.Second)))
	switch over := r.Err() != nil; chance.IntN(6) {
	case 0:
		r.wire.set(func(w *wire) { w.cut = true })
	case 1:
		r.wire.set(func(w *wire) { w.late = some })
	case 2:
		r.wire.set(func(w *wire) { w.slow = some })
	case 3:
		r.kill()
		return start(t, api, name, DefaultSettings(), change...)
	default:
		r.wire.set(func(w *wire) { w.cut, w.late, w.slow = false, 0, 0 })
		if over {
			r.stop()
			return start(t, api, name, DefaultSettings(), change...)
		}
	}
	return r
}

// TestOnlyARenewalIsWork checks that only a renewal proves that the claim was
// renewed.
func TestOnlyARenewalIsWork(t *testing.T) {
	t.Parallel()
	at := func(second int) *metav1.MicroTime { return &metav1.MicroTime{Time: time.Unix(int64(second), 0)} }
	spec := coordinationv1.LeaseSpec{HolderIdentity: new("a"), AcquireTime: at(1), RenewTime: at(2), LeaseDurationSeconds: new(int32(20))}
	for name, c := range map[string]struct {
		change func(*coordinationv1.Lease)
		works  bool
	}{
		"renewed": {func(l *coordinationv1.Lease) { l.Spec.RenewTime = at(3) }, true},
		"taken": {func(l *coordinationv1.Lease) {
			l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = new("b"), at(3), at(3)
		}, false},
		"taken again":            {func(l *coordinationv1.Lease) { l.Spec.AcquireTime, l.Spec.RenewTime = at(3), at(3) }, false},
		"released":               {func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Spec.RenewTime = new(""), at(3) }, false},
		"edited by hand":         {func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = new(int32(30)) }, false},
		"deleted and made again": {func(l *coordinationv1.Lease) { l.UID, l.Spec.RenewTime = "2", at(3) }, false},
	} {
		s, lease := observedLease{}, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{UID: "1"}, Spec: spec}
		s.see(lease, 1, time.Second, time.Minute)
		next := lease.DeepCopy()
		c.change(next)
		s.see(next, 2, 2*time.Second, time.Minute)
		if works := s.led != 0; works != c.works {
			t.Errorf("%s: a holder was seen at work: %v, want %v", name, works, c.works)
		}
	}
}

func TestSightKeepsToTheNewest(t *testing.T) {
	t.Parallel()
	lease := func(holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: "it"},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: new(int32(20))},
		}
	}
	const usual = 15 * time.Second
	s := observedLease{}
	s.see(lease("a"), 9, time.Second, usual)
	if s.see(lease("old"), 8, 2*time.Second, usual) || s.holder() != "a" {
		t.Errorf("what is older was taken: %q", s.holder())
	}
	s.see(lease("a"), 10, 3*time.Second, usual)
	if at := s.freeAt(usual); at != 21*time.Second {
		t.Errorf("free at %s: want the holder's 20 s from the last change of the spec", at)
	}
	s.see(lease("b"), 11, 4*time.Second, usual)
	if s.seeLive(nil, 10, 10, 5*time.Second, usual) {
		t.Error("a live read was believed although something newer was seen meanwhile")
	}
	if !s.seeLive(lease("restored"), 5, 11, 6*time.Second, usual) || s.holder() != "restored" {
		t.Error("a live read of a restored cluster was not believed")
	}
	s.seeLive(nil, 5, 5, 7*time.Second, usual)
	if at := s.freeAt(usual); at != 27*time.Second {
		t.Errorf("free at %s: want a deleted Lease waited out", at)
	}
}
