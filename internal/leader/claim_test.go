// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// cluster returns the API servers of a cluster with Leases in two namespaces and
// one claim.
func cluster() (blue, green *leaseAPI) {
	blue, green = newLeaseAPI(), newLeaseAPI()
	blue.claims = newLeaseAPI()
	green.claims = blue.claims
	return blue, green
}

// in makes a replica elect on the Lease of a namespace.
func in(namespace string) func(*Options) {
	return func(o *Options) { o.Namespace = namespace }
}

// conflicts counts the reports of other Drovers.
func conflicts(n *atomic.Int32, text *atomic.Value) func(*Options) {
	return func(o *Options) {
		o.Conflict = func(said string) { n.Add(1); text.Store(said) }
	}
}

// TestASecondDroverWaits checks that a second Drover waits as long as any replica
// of the first one leads, and reports that once.
func TestASecondDroverWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		var text atomic.Value
		blue, green := cluster()
		first, second := start(t, blue, "b1", DefaultSettings(), in("blue")), (*replica)(nil)
		pass(time.Second)
		other := start(t, green, "g1", DefaultSettings(), in("green"), conflicts(&told, &text))
		for n := range 5 {
			second = start(t, blue, fmt.Sprint("b", n+2), DefaultSettings(), in("blue"))
			pass(time.Minute)
			wantLeader(t, first, first, second, other)
			if n%2 == 0 {
				first.kill()
			} else {
				first.stop()
			}
			pass(DefaultSettings().Lease + lag)
			wantLeader(t, second, first, second, other)
			first = second
		}
		if said, _ := text.Load().(string); told.Load() != 1 || !strings.Contains(said, "blue/it") || !strings.Contains(said, "green/it") {
			t.Errorf("told %d times, last %q: want once, with both Leases", told.Load(), said)
		}
		first.stop()
		pass(DefaultSettings().Lease)
		wantLeader(t, nil, first, other)
		pass(claimTerms * DefaultSettings().Lease)
		wantLeader(t, other, first, other)
	})
}

// TestTwoDroversStartAtOnce checks that one of them leads.
func TestTwoDroversStartAtOnce(t *testing.T) {
	t.Parallel()
	for _, slow := range []time.Duration{0, 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			blue, green := cluster()
			b := start(t, blue, "b", DefaultSettings(), in("blue"))
			b.wire.set(func(w *wire) { w.slow = slow })
			g := start(t, green, "g", DefaultSettings(), in("green"))
			for range 1000 {
				pass(lag)
				if b.mayAct(t) && g.mayAct(t) {
					t.Fatal("both may act")
				}
			}
			if !b.mayAct(t) && !g.mayAct(t) {
				t.Error("neither leads")
			}
		})
	}
}

// TestAFailoverDoesNotAskForTheClaim checks that a standby that has seen its
// predecessor renew leads at once, even while the claim is unreachable.
func TestAFailoverDoesNotAskForTheClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blue, _ := cluster()
		leader, standby := standbyOf(t, blue)
		blue.claims.mu.Lock()
		blue.claims.refuses = errors.New("no answer")
		blue.claims.mu.Unlock()
		leader.stop()
		pass(atOnce)
		wantLeader(t, standby, leader, standby)
	})
}

// TestAClaimThatCannotBeRenewed checks that leadership ends before the claim
// expires.
func TestAClaimThatCannotBeRenewed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blue, _ := cluster()
		leader := start(t, blue, "b", DefaultSettings())
		pass(time.Second)
		made, _ := blue.claims.get()
		blue.claims.mu.Lock()
		blue.claims.refuses = errors.New("no answer")
		blue.claims.mu.Unlock()
		runsOut := made.Spec.RenewTime.Add(claimTerms * DefaultSettings().Lease)
		for time.Now().Before(runsOut.Add(-lag)) {
			pass(lag)
		}
		if leader.mayAct(t) {
			t.Error("it may act when the claim runs out")
		}
	})
}

// TestSuspendedWhileAnotherDroverTookOver checks that a leader that resumes does
// not act on its old Lease, which no other replica took.
func TestSuspendedWhileAnotherDroverTookOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var slept atomic.Int64
		blue, _ := cluster()
		leader := start(t, blue, "b", DefaultSettings(), func(o *Options) {
			awake := o.Boot
			o.Boot = func() time.Duration { return awake() + time.Duration(slept.Load()) }
		})
		pass(time.Minute + time.Second)
		blue.claims.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("green/it") })
		slept.Store(int64(time.Hour))
		for range 40 {
			if leader.mayAct(t) {
				t.Fatal("it may act")
			}
			pass(lag)
		}
		if err := leader.Err(); !errors.Is(err, ErrLost) || !errors.Is(err, errRival) {
			t.Errorf("its end is %v, want that another Drover leads", err)
		}
	})
}

// TestADeletedClaim checks that the holder creates the claim again before another
// Drover can take it.
func TestADeletedClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blue, green := cluster()
		b := start(t, blue, "b", DefaultSettings(), in("blue"))
		pass(time.Second)
		g := start(t, green, "g", DefaultSettings(), in("green"))
		pass(time.Minute)
		blue.claims.edit(nil)
		for range 600 {
			pass(lag)
			wantLeader(t, b, b, g)
		}
		if got := blue.claims.holder(); got != "blue/it" {
			t.Errorf("the claim is held by %q", got)
		}
	})
}

// TestWithoutTheRightToClaim checks that older RBAC does not stop the leader, and
// is reported once.
func TestWithoutTheRightToClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lines := 0
		blue, _ := cluster()
		blue.claims.refuses = apierrors.NewForbidden(resource, ClaimName, errors.New("by RBAC"))
		leader := start(t, blue, "b", DefaultSettings(), func(o *Options) {
			o.Log = funcr.New(func(_, args string) {
				if strings.Contains(args, "RBAC anew") {
					lines++
				}
			}, funcr.Options{})
		})
		pass(atOnce)
		wantLeader(t, leader, leader)
		pass(10 * time.Minute)
		wantLeader(t, leader, leader)
		if lines != 1 {
			t.Errorf("told %d times, want once", lines)
		}
	})
}

// TestNeverTwoDrovers starts, stops and disconnects replicas of two Drovers at
// random.
func TestNeverTwoDrovers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { neverTwoDrovers(t, rand.New(rand.NewPCG(seed, 2))) }) //nolint:gosec // The same chances every time.
		})
	}
}

func neverTwoDrovers(t *testing.T, chance *rand.Rand) {
	blue, green := cluster()
	spaces := []*leaseAPI{blue, green, blue, green}
	up := make([]*replica, len(spaces))
	for n := range up {
		up[n] = start(t, spaces[n], fmt.Sprint("r", n), DefaultSettings(), in(spaceOf(n)))
	}
	led := map[int]bool{}
	for step := range 6000 {
		pass(100 * time.Millisecond)
		acting := 0
		for n, r := range up {
			if r.mayAct(t) {
				acting++
				led[n%2] = true
			}
		}
		if acting > 1 {
			t.Fatalf("%d may act at once", acting)
		}
		if step%60 == 0 {
			n := chance.IntN(len(up))
			if chance.IntN(4) == 0 { // all replicas of a Drover end
				up[n].kill()
				up[(n+2)%4].kill()
				up[(n+2)%4] = start(t, spaces[n], fmt.Sprintf("r%d-%d", (n+2)%4, step), DefaultSettings(), in(spaceOf(n)))
				up[n] = start(t, spaces[n], fmt.Sprintf("r%d-%d", n, step), DefaultSettings(), in(spaceOf(n)))
				continue
			}
			up[n] = disturb(t, spaces[n], up[n], chance, fmt.Sprintf("r%d-%d", n, step), in(spaceOf(n)))
		}
	}
	if len(led) == 0 {
		t.Error("nobody ever led")
	}
}

func spaceOf(n int) string { return []string{"blue", "green"}[n%2] }

// TestConfirm checks that Confirm reads the Lease live and ends leadership if it is
// lost.
func TestConfirm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := newLeaseAPI()
		leader := start(t, api, "leader", DefaultSettings())
		pass(time.Second)
		if leads, err := leader.Confirm(t.Context()); !leads || err != nil {
			t.Errorf("got %t, %v: want that it leads", leads, err)
		}
		leader.wire.set(func(w *wire) { w.cut = true })
		if _, err := leader.Confirm(t.Context()); !errors.Is(err, context.DeadlineExceeded) || !leader.leads() {
			t.Errorf("without an answer: %v, and it leads: %t; want an error and no consequence", err, leader.leads())
		}
		// The watch is cut and does not show it.
		api.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("successor") })
		leader.wire.set(func(w *wire) { w.cut = false })
		if leads, err := leader.Confirm(t.Context()); leads || err != nil {
			t.Errorf("got %t, %v: want that it does not lead", leads, err)
		}
		select {
		case <-leader.Lost():
		default:
			t.Error("the loss was not told")
		}
	})
}

// TestClaimOfADroverLongGone checks that the claim of a removed Drover is waited
// for, and is not reported as a second Drover.
func TestClaimOfADroverLongGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told atomic.Int32
		var text atomic.Value
		blue, green := cluster()
		first := start(t, blue, "b1", DefaultSettings(), in("blue"))
		pass(time.Minute)
		first.stop()
		pass(24 * time.Hour)
		began := time.Now()
		other := start(t, green, "g1", DefaultSettings(), in("green"), conflicts(&told, &text))
		for !other.mayAct(t) && time.Since(began) < 10*time.Minute {
			pass(lag)
		}
		if told.Load() != 0 {
			t.Error("it reported two Drovers where there is one")
		}
	})
}

// TestADurationBeyondAllBounds checks that an excessive duration does not block
// leadership forever.
func TestADurationBeyondAllBounds(t *testing.T) {
	t.Parallel()
	lease := func() *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("foreign/it"), LeaseDurationSeconds: new(int32(math.MaxInt32))}}
	}
	for name, of := range map[string]func(*leaseAPI) *leaseAPI{
		"the claim": func(api *leaseAPI) *leaseAPI { return api.claims },
		"the Lease": func(api *leaseAPI) *leaseAPI { return api },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				api, _ := cluster()
				damaged := of(api)
				damaged.mu.Lock()
				damaged.store(lease(), watch.Added)
				damaged.mu.Unlock()
				leader := start(t, api, "b", DefaultSettings())
				pass(maxTerm - lag)
				wantLeader(t, nil, leader)
				pass(DefaultSettings().Retry + lag)
				wantLeader(t, leader, leader)
			})
		})
	}
}

// TestATakeProvesNoClaim checks that a standby that has seen a replica take and
// release the Lease, but not renew it, asks for the claim. Another Drover may have
// it by then.
func TestATakeProvesNoClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		blue, green := cluster()
		other := start(t, green, "g", DefaultSettings(), in("green"))
		pass(time.Second)
		hold := func(holder string) func(*coordinationv1.Lease) {
			return func(l *coordinationv1.Lease) {
				now := metav1.NewMicroTime(time.Now())
				l.Spec.HolderIdentity, l.Spec.AcquireTime, l.Spec.RenewTime = &holder, &now, &now
				l.Spec.LeaseDurationSeconds = new(int32(15)) // DefaultSettings
			}
		}
		blue.mu.Lock()
		blue.store(&coordinationv1.Lease{}, watch.Added)
		blue.mu.Unlock()
		blue.edit(hold("b1"))
		standby := start(t, blue, "b3", DefaultSettings(), in("blue"))
		standby.wire.set(func(w *wire) { w.slow = 2 * lag }) // it would learn late of the other Drover
		for _, holder := range []string{"b2", ""} {
			pass(time.Second)
			blue.edit(hold(holder))
		}
		for range 600 {
			pass(lag)
			wantLeader(t, other, other, standby)
		}
	})
}
