// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
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

	"cloudnative.tw/drover/test/assert"
)

// newCluster returns the API servers of a cluster with Leases in two namespaces and
// one claim.
func newCluster() (blue, green *leaseAPI) {
	blue, green = newLeaseAPI(), newLeaseAPI()
	blue.claims = newLeaseAPI()
	green.claims = blue.claims
	return blue, green
}

// inNamespace makes a replica elect on the Lease of a namespace.
func inNamespace(namespace string) func(*Options) {
	return func(o *Options) { o.Namespace = namespace }
}

// countConflicts counts the reports of other Drovers.
func countConflicts(n *atomic.Int32, text *atomic.Value) func(*Options) {
	return func(o *Options) {
		o.Conflict = func(message string) { n.Add(1); text.Store(message) }
	}
}

// TestSecondDroverWaits checks that a second Drover waits as long as any replica
// of the first one leads, and reports that once.
func TestSecondDroverWaits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var reports atomic.Int32
		var text atomic.Value
		blue, green := newCluster()
		first, second := startReplica(t, blue, "b1", DefaultSettings(), inNamespace("blue")), (*replica)(nil)
		advance(time.Second)
		other := startReplica(t, green, "g1", DefaultSettings(), inNamespace("green"), countConflicts(&reports, &text))
		for n := range 5 {
			second = startReplica(t, blue, fmt.Sprint("b", n+2), DefaultSettings(), inNamespace("blue"))
			advance(time.Minute)
			wantLeader(t, first, first, second, other)
			if n%2 == 0 {
				first.kill()
			} else {
				first.stop()
			}
			advance(DefaultSettings().Lease + stepDelay)
			wantLeader(t, second, first, second, other)
			first = second
		}
		if message, _ := text.Load().(string); reports.Load() != 1 || !strings.Contains(message, "blue/it") || !strings.Contains(message, "green/it") {
			t.Errorf("reported %d times, last %q: want once, with both Leases", reports.Load(), message)
		}
		first.stop()
		advance(DefaultSettings().Lease)
		wantLeader(t, nil, first, other)
		advance(claimTerms * DefaultSettings().Lease)
		wantLeader(t, other, first, other)
	})
}

// TestTwoDroversStartTogether checks that one of them leads.
func TestTwoDroversStartTogether(t *testing.T) {
	t.Parallel()
	for _, slow := range []time.Duration{0, 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			blue, green := newCluster()
			b := startReplica(t, blue, "b", DefaultSettings(), inNamespace("blue"))
			b.conn.setFaults(func(w *connection) { w.requestDelay = slow })
			g := startReplica(t, green, "g", DefaultSettings(), inNamespace("green"))
			for range 1000 {
				advance(stepDelay)
				assert.Require(t, !b.mayAct(t) || !g.mayAct(t), "both may act")
			}
			assert.True(t, b.mayAct(t) || g.mayAct(t), "neither leads")
		})
	}
}

// TestFailoverSkipsClaim checks that a standby that has observed its
// predecessor renew leads at once, even while the claim is unreachable.
func TestFailoverSkipsClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		blue, _ := newCluster()
		leader, standby := startPair(t, blue)
		blue.claims.mu.Lock()
		blue.claims.failure = errors.New("no answer")
		blue.claims.mu.Unlock()
		leader.stop()
		advance(handoverLimit)
		wantLeader(t, standby, leader, standby)
	})
}

// TestUnrenewableClaim checks that leadership ends before the claim
// expires.
func TestUnrenewableClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		blue, _ := newCluster()
		leader := startReplica(t, blue, "b", DefaultSettings())
		advance(time.Second)
		made, _ := blue.claims.get()
		blue.claims.mu.Lock()
		blue.claims.failure = errors.New("no answer")
		blue.claims.mu.Unlock()
		runsOut := made.Spec.RenewTime.Add(claimTerms * DefaultSettings().Lease)
		for time.Now().Before(runsOut.Add(-stepDelay)) {
			advance(stepDelay)
		}
		assert.True(t, !leader.mayAct(t), "it may act when the claim runs out")
	})
}

// TestSuspendedDuringTakeover checks that a leader that resumes does
// not act on its old Lease, which no other replica acquired.
func TestSuspendedDuringTakeover(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		var slept atomic.Int64
		blue, _ := newCluster()
		leader := startReplica(t, blue, "b", DefaultSettings(), func(o *Options) {
			awake := o.Boot
			o.Boot = func() time.Duration { return awake() + time.Duration(slept.Load()) }
		})
		advance(time.Minute + time.Second)
		blue.claims.edit(func(lease *coordinationv1.Lease) { lease.Spec.HolderIdentity = new("green/it") })
		slept.Store(int64(time.Hour))
		for range 40 {
			assert.Require(t, !leader.mayAct(t), "it may act")
			advance(stepDelay)
		}
		err := leader.Err()
		assert.True(t, errors.Is(err, ErrLost) && errors.Is(err, errRival), "its end is %v, want that another Drover leads", err)
	})
}

// TestDeletedClaim checks that the holder creates the claim again before another
// Drover can take it.
func TestDeletedClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		blue, green := newCluster()
		b := startReplica(t, blue, "b", DefaultSettings(), inNamespace("blue"))
		advance(time.Second)
		g := startReplica(t, green, "g", DefaultSettings(), inNamespace("green"))
		advance(time.Minute)
		blue.claims.edit(nil)
		for range 600 {
			advance(stepDelay)
			wantLeader(t, b, b, g)
		}
		assert.Equal(t, "the claim is held by", blue.claims.holder(), "blue/it")
	})
}

// TestForbiddenClaim checks that older RBAC does not stop the leader, and
// is reported once.
func TestForbiddenClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		lines := 0
		blue, _ := newCluster()
		blue.claims.failure = apierrors.NewForbidden(resource, ClaimName, errors.New("by RBAC"))
		leader := startReplica(t, blue, "b", DefaultSettings(), func(o *Options) {
			o.Log = funcr.New(func(_, args string) {
				if strings.Contains(args, "RBAC again") {
					lines++
				}
			}, funcr.Options{})
		})
		advance(handoverLimit)
		wantLeader(t, leader, leader)
		advance(10 * time.Minute)
		wantLeader(t, leader, leader)
		assert.True(t, lines == 1, "reported %d times, want once", lines)
	})
}

// TestNeverTwoDrovers starts, stops and disconnects replicas of two Drovers at
// random.
func TestNeverTwoDrovers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			inBubble(t, func(t *testing.T) { checkNeverTwoDrovers(t, rand.New(rand.NewPCG(seed, 2))) }) //nolint:gosec // The same chances every time.
		})
	}
}

func checkNeverTwoDrovers(t *testing.T, chance *rand.Rand) {
	blue, green := newCluster()
	spaces := []*leaseAPI{blue, green, blue, green}
	up := make([]*replica, len(spaces))
	for n := range up {
		up[n] = startReplica(t, spaces[n], fmt.Sprint("r", n), DefaultSettings(), inNamespace(namespaceOf(n)))
	}
	led := map[int]bool{}
	for step := range 6000 {
		advance(100 * time.Millisecond)
		acting := 0
		for n, r := range up {
			if r.mayAct(t) {
				acting++
				led[n%2] = true
			}
		}
		assert.Require(t, acting <= 1, "%d may act at once", acting)
		if step%60 == 0 {
			n := chance.IntN(len(up))
			if chance.IntN(4) == 0 { // all replicas of a Drover end
				up[n].kill()
				up[(n+2)%4].kill()
				up[(n+2)%4] = startReplica(t, spaces[n], fmt.Sprintf("r%d-%d", (n+2)%4, step), DefaultSettings(), inNamespace(namespaceOf(n)))
				up[n] = startReplica(t, spaces[n], fmt.Sprintf("r%d-%d", n, step), DefaultSettings(), inNamespace(namespaceOf(n)))
				continue
			}
			up[n] = disturbReplica(t, spaces[n], up[n], chance, fmt.Sprintf("r%d-%d", n, step), inNamespace(namespaceOf(n)))
		}
	}
	assert.True(t, len(led) != 0, "no replica ever led")
}

func namespaceOf(n int) string { return []string{"blue", "green"}[n%2] }

// TestClaimOfRemovedDrover checks that the claim of a removed Drover is waited
// for, and is not reported as a second Drover.
func TestClaimOfRemovedDrover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reports atomic.Int32
		var text atomic.Value
		blue, green := newCluster()
		first := startReplica(t, blue, "b1", DefaultSettings(), inNamespace("blue"))
		advance(time.Minute)
		first.stop()
		advance(24 * time.Hour)
		began := time.Now()
		other := startReplica(t, green, "g1", DefaultSettings(), inNamespace("green"), countConflicts(&reports, &text))
		for !other.mayAct(t) && time.Since(began) < 10*time.Minute {
			advance(stepDelay)
		}
		assert.True(t, reports.Load() == 0, "it reported two Drovers where there is one")
	})
}

// TestExcessiveDuration checks that an excessive duration of the claim does not block leadership
// forever. TestObservedTerms checks it of the Lease.
func TestExcessiveDuration(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		api, _ := newCluster()
		api.claims.mu.Lock()
		api.claims.store(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: new("foreign/it"), LeaseDurationSeconds: new(int32(math.MaxInt32)),
		}}, watch.Added)
		api.claims.mu.Unlock()
		leader := startReplica(t, api, "b", DefaultSettings())
		advance(maxTerm - stepDelay)
		wantLeader(t, nil, leader)
		advance(DefaultSettings().Retry + stepDelay)
		wantLeader(t, leader, leader)
	})
}

// TestAcquisitionProvesNoClaim checks that a standby that has observed a replica
// acquire and release the Lease, but not renew it, reads the claim. Another Drover may
// have it by then.
func TestAcquisitionProvesNoClaim(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		blue, green := newCluster()
		other := startReplica(t, green, "g", DefaultSettings(), inNamespace("green"))
		advance(time.Second)
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
		standby := startReplica(t, blue, "b3", DefaultSettings(), inNamespace("blue"))
		standby.conn.setFaults(func(w *connection) { w.requestDelay = 2 * stepDelay }) // it would notice the other Drover late
		for _, holder := range []string{"b2", ""} {
			advance(time.Second)
			blue.edit(hold(holder))
		}
		for range 600 {
			advance(stepDelay)
			wantLeader(t, other, other, standby)
		}
	})
}
