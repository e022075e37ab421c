// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// TestTwoLeaders has one leader remove the pod whose scheduling gate another one is about to remove.
// Either the gate is removed and the pod stays, or it never runs, and the PVC has that recorded.
func TestTwoLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	recordRun := func(c *convergence) error {
		return annotateRoot(t, c, objects.AnnotationRun, string(c.server.Pod.UID))
	}
	removeGate := func(c *convergence) error {
		return c.writer.updatePod(t.Context(), func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
	}
	for name, tc := range map[string]struct {
		// before and after are the steps of the first leader before and after the second one removes
		// the pod, which it has seen with its gate.
		before, after func(one *convergence) error
		stays         bool
	}{
		"recorded":      {before: recordRun},
		"recorded-late": {after: recordRun},
		"ungated":       {before: func(c *convergence) error { return errors.Join(recordRun(c), removeGate(c)) }, stays: true},
		"ungated-late":  {before: recordRun, after: removeGate},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.newServer(t, name)
			one, other := s.twoLeaders(t)
			assert.Require(t, tc.before == nil || tc.before(one) == nil, "the gate cannot be removed")
			err := other.writer.forgetPod(t.Context())
			assert.True(t, (err != nil) == tc.stays && (err == nil || errors.Is(err, driver.ErrRetry)), "removing the pod: %v", err)
			assert.True(t, tc.after == nil || tc.after(one) != nil, "the gate of a pod that is gone was removed")
			got := s.reach(t, driver.StateRunning)
			assert.True(t, (got.Run == string(one.server.Pod.UID)) == tc.stays, "the run is %s, want that of the pod %s: %v", got.Run, one.server.Pod.UID, tc.stays)
			s.deleteAll(t)
		})
	}
}

// twoLeaders returns calls of two leaders that both see the server's first pod with its gate.
func (s *server) twoLeaders(t *testing.T) (first, second *convergence) {
	t.Helper()
	s.record(t)
	first = s.converge(t)
	assert.NoError(t, errors.Join(first.claims.ensureClaim(t.Context(), objects.Disk{Bytes: s.RootDiskBytes}), first.createPod(t.Context()), first.ensureSecret(t.Context())))
	// Nobody changes the PVC from here on but the leaders.
	assert.Eventually(t, "the PVC is bound", func(t testing.TB) error {
		if err := first.server.Read(t.Context()); err != nil || first.server.Claims.Root().Status.Phase == corev1.ClaimBound {
			return err
		}
		return errors.New("it is not")
	})
	second = s.converge(t)
	return first, second
}

// TestNonceIsUsedOnce has one leader remove a pod with its scheduling gate, whose UID is not recorded yet. A
// leader that still has that record must neither make a second pod with the nonce in it, nor start one that was
// made late: the VirtualMachine's status may have another nonce by then. That holds too if it removes the pod of that
// other nonce first.
func TestNonceIsUsedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, late := range map[string]func(*server, *convergence) error{
		"removed":   func(*server, *convergence) error { return nil },
		"made late": func(_ *server, c *convergence) error { return c.createPod(t.Context()) }, // decided before the removal
		"replaced": func(s *server, _ *convergence) error {
			s.record(t)
			return s.converge(t).createPod(t.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.newServer(t, strings.ReplaceAll(name, " ", "-"))
			one, other := s.twoLeaders(t)
			old := s.ServerSpec
			assert.NoError(t, other.writer.forgetPod(t.Context()))
			one.server.Pod = nil
			assert.NoError(t, late(s, one))
			_, err := w.open(t).Ensure(t.Context(), old)
			_, ok := errors.AsType[*driver.RecordFirstError](err)
			assert.True(t, ok, "Ensure with the record of a pod that was removed: %v, want another one recorded", err)
			s.reach(t, driver.StateRunning)
			s.deleteAll(t)
		})
	}
}

// annotateRoot sets an annotation of the root disk's PVC.
func annotateRoot(t *testing.T, c *convergence, key, value string) error {
	t.Helper()
	return c.writer.updateClaim(t.Context(), c.server.Claims.Root(), func(root *corev1.PersistentVolumeClaim) {
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, key, value)
	})
}

// TestEpochOfAUser writes a high epoch on a PVC, as whoever may change it can: that concerns one
// server alone, so the error is not one that suspends the driver.
func TestEpochOfAUser(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.reach(t, driver.StateRunning)
	c := s.converge(t)
	c.writer.epoch = math.MaxUint64
	assert.NoError(t, annotateRoot(t, c, "example.com/by", "a user"))
	_, err := s.ensure(t)
	assert.ErrorIs(t, "Ensure", err, driver.ErrRetry, objects.AnnotationEpoch)
	err = errors.Join(err, s.d.Delete(t.Context(), s.Target, false))
	assert.True(t, !errors.Is(err, driver.ErrFenced) && driver.ReasonOf(err) == "LaterEpoch", "the driver is suspended by %v", err)
	s.Epoch = math.MaxUint64
	s.deleteAll(t)
}
