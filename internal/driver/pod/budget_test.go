// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"slices"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// budget returns the PodDisruptionBudget of a server with the status that a controller of
// disruptions gives it, or nil if there is none.
func (s *server) budget(t *testing.T) *policyv1.PodDisruptionBudget {
	t.Helper()
	budgets := s.w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace)
	b, err := budgets.Get(t.Context(), s.base(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, ExpectedPods: 1, CurrentHealthy: 1, DesiredHealthy: 1}
		b, err = budgets.UpdateStatus(t.Context(), b, metav1.UpdateOptions{})
	}
	assert.NoError(t, err)
	return b
}

func (s *server) evict(t *testing.T) error {
	t.Helper()
	return s.w.kube.CoreV1().Pods(s.Namespace).EvictV1(t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: s.base()}})
}

// wantNeedsEnsure checks whether lists of the server alone, and of all servers, ask for an Ensure.
func (s *server) wantNeedsEnsure(t *testing.T, want bool) {
	t.Helper()
	all, err := s.d.List(t.Context())
	assert.NoError(t, err)
	n := slices.IndexFunc(all, func(other driver.Server) bool { return other.UID == s.UID })
	if one := s.list(t); one.NeedsEnsure != want || n < 0 || all[n].NeedsEnsure != want {
		t.Errorf("the server needs an Ensure: %t, in the list of all: %+v, want %t", one.NeedsEnsure, all[max(n, 0)], want)
	}
}

// TestBlockEviction checks that an eviction is refused as long as the spec says so, whatever
// becomes of the PodDisruptionBudget.
func TestBlockEviction(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.BlockEviction = true
	s.reach(t, driver.StateRunning)
	b := s.budget(t)
	assert.Require(t, b != nil && b.OwnerReferences[0].UID == s.UID && b.UID == s.recordOf(objects.KindBudget).UID,
		"the budget is %+v, the record %+v", b, s.Objects)
	err := s.evict(t)
	assert.True(t, apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause), "the eviction is answered with %v", err)

	b.Spec.Selector.MatchLabels = map[string]string{"a": "b"}
	assert.NoError(t, assert.ErrorOf(w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace).Update(t.Context(), b, metav1.UpdateOptions{})))
	s.wantNeedsEnsure(t, true)
	s.reach(t, driver.StateRunning)
	s.wantNeedsEnsure(t, false)
	now := s.budget(t)
	assert.True(t, now.UID == b.UID && now.Spec.Selector.MatchLabels[objects.LabelUID] == string(s.UID), "a budget that was changed is %+v", now.Spec)
	assert.NoError(t, w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace).Delete(t.Context(), b.Name, metav1.DeleteOptions{}))
	s.wantNeedsEnsure(t, true)
	s.reach(t, driver.StateRunning)
	s.wantNeedsEnsure(t, false)
	if now := s.budget(t); now == nil || now.UID == b.UID || now.UID != s.recordOf(objects.KindBudget).UID {
		t.Errorf("a budget that was deleted is %+v, the record %+v", now, s.Objects)
	}

	s.BlockEviction = false
	s.reach(t, driver.StateRunning)
	s.wantNeedsEnsure(t, false)
	now = s.budget(t)
	assert.True(t, now == nil && s.recordOf(objects.KindBudget) == nil, "the budget is %+v still, the record %+v", now, s.Objects)
	assert.ErrorIs(t, "the eviction is answered with", s.evict(t), nil)
	s.deleteAll(t)
	s.wantGone(t)
}

// TestOrphanedBudget checks that a PodDisruptionBudget that has lost its owner, as by a deletion with orphan
// propagation, goes with the server, and when the server is released.
func TestOrphanedBudget(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		power   driver.Power
		state   driver.State
		retains bool
	}{
		"running":  {driver.PowerOn, driver.StateRunning, false},
		"stopped":  {driver.PowerOff, driver.StateStopped, false},
		"released": {driver.PowerOff, driver.StateStopped, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := newServer(t)
			s.BlockEviction, s.Power = true, c.power
			s.reach(t, c.state)
			b := s.budget(t)
			b.OwnerReferences = nil
			assert.NoError(t, assert.ErrorOf(w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace).Update(t.Context(), b, metav1.UpdateOptions{})))
			if c.retains {
				assert.NoError(t, s.d.Delete(t.Context(), s.Target, true))
			} else {
				s.deleteAll(t)
			}
			left := s.budget(t)
			assert.True(t, left == nil, "the budget %v is left", left)
		})
	}
}

// TestForeignBudget checks that a PodDisruptionBudget that a tenant has made is neither adopted nor
// removed, and that no pod starts that could be evicted.
func TestForeignBudget(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	budgets := w.kube.PolicyV1().PodDisruptionBudgets(s.Namespace)
	theirs, err := budgets.Create(t.Context(), s.d.Objects.NewBudget(s.ServerSpec, "theirs"), metav1.CreateOptions{})
	assert.NoError(t, err)
	s.BlockEviction = true
	s.wantRefusal(t, driver.ReasonNameConflict, "PodDisruptionBudget "+s.Namespace+"/"+s.base())
	_, err = w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
	assert.True(t, apierrors.IsNotFound(err), "the pod: %v", err)
	s.BlockEviction = false
	s.reach(t, driver.StateRunning)
	now, err := budgets.Get(t.Context(), s.base(), metav1.GetOptions{})
	assert.True(t, err == nil && now.ResourceVersion == theirs.ResourceVersion, "the tenant's budget is %v, %v", now, err)
	s.deleteAll(t)
}

// TestBlockEvictionAfterCrash ends the controller after each creation, before that is recorded.
func TestBlockEvictionAfterCrash(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.BlockEviction, s.failWrites = true, true
	s.reach(t, driver.StateRunning)
	before := s.budget(t)
	s.failWrites, s.d = false, w.open(t)
	s.reach(t, driver.StateRunning)
	now := s.budget(t)
	assert.True(t, now.UID == before.UID && s.recordOf(objects.KindBudget).UID == before.UID, "the budget is %v, the record %+v", now.UID, s.Objects)
	s.BlockEviction, s.failWrites = false, true
	s.reach(t, driver.StateRunning)
	s.failWrites = false
	s.reach(t, driver.StateRunning)
	now = s.budget(t)
	assert.True(t, now == nil && s.recordOf(objects.KindBudget) == nil, "the budget is %v, the record %+v", now, s.Objects)
	s.deleteAll(t)
}
