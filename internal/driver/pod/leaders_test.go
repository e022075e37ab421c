// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/framework"
)

// TestTwoLeaders has one leader remove the pod that another one is about to let go. Either the pod
// is let go and stays, or it never runs, which is known then.
func TestTwoLeaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	recordRun := func(c *convergence) error {
		return c.annotateRoot(t.Context(), c.spec.Epoch, AnnotationRun, string(c.pod.UID))
	}
	letGo := func(c *convergence) error {
		return c.updatePod(t.Context(), c.spec.Epoch, func(p *corev1.Pod) { p.Spec.SchedulingGates = nil })
	}
	for name, tc := range map[string]struct {
		// before and after are what the one leader does before and after the other one removes
		// the pod, which it has seen with its gate.
		before, after func(one *convergence) error
		stays         bool
	}{
		"recorded":      {before: recordRun},
		"recorded-late": {after: recordRun},
		"let-go":        {before: func(c *convergence) error { return errors.Join(recordRun(c), letGo(c)) }, stays: true},
		"let-go-late":   {before: recordRun, after: letGo},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.newServer(t, name)
			one, other := s.twoLeaders(t)
			if tc.before != nil && tc.before(one) != nil {
				t.Fatal("the pod cannot be let go")
			}
			err := other.forgetPod(t.Context(), s.Epoch)
			if (err != nil) != tc.stays || err != nil && !errors.Is(err, driver.ErrRetry) {
				t.Errorf("removing the pod: %v", err)
			}
			if tc.after != nil && tc.after(one) == nil {
				t.Error("a pod that is gone was let go")
			}
			got := s.reach(t, driver.StateRunning)
			if (got.Run == string(one.pod.UID)) != tc.stays {
				t.Errorf("the run is %s, want that of the pod %s: %v", got.Run, one.pod.UID, tc.stays)
			}
			s.deleteAll(t)
		})
	}
}

// twoLeaders returns calls of two leaders that both see the server's first pod with its gate.
func (s *server) twoLeaders(t *testing.T) (one, other *convergence) {
	t.Helper()
	s.record(t)
	one = s.converge(t)
	if err := errors.Join(one.ensureClaim(t.Context(), disk{bytes: s.RootDiskBytes}), one.createPod(t.Context()), one.ensureSecret(t.Context())); err != nil {
		t.Fatal(err)
	}
	// Nobody changes the PVC from here on but the leaders.
	framework.Eventually(t, framework.StepTimeout, "the PVC is bound", func() error {
		if err := one.read(t.Context()); err != nil || one.root.Status.Phase == corev1.ClaimBound {
			return err
		}
		return errors.New("it is not")
	})
	other = s.converge(t)
	return one, other
}
