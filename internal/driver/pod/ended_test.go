// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// TestDeletedPodsAreReleased has a user delete pods whose servers are off, or cannot start again. A finalizer
// that stays would block the drain of the node and the deletion of the namespace.
func TestDeletedPodsAreReleased(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gated := w.newEphemeral(t, "gated")
	gated.turn(t, driver.PowerOff, driver.StateStopped)
	stopped := w.newEphemeral(t, "stopped")
	stopped.reach(t, driver.StateRunning)
	stopped.turn(t, driver.PowerOff, driver.StateStopped)
	refused := w.newServer(t, "refused")
	refused.reach(t, driver.StateRunning)
	refused.Ports = []driver.Port{{Port: 80, HostPort: 80, Protocol: "TCP"}}
	for _, s := range []*server{gated, stopped, refused} {
		before := s.pod(t)
		assert.NoError(t, w.kube.CoreV1().Pods(s.Namespace).Delete(t.Context(), before.Name, metav1.DeleteOptions{}))
		assert.Eventually(t, "the pod of "+s.Name+" goes", func(t testing.TB) error {
			all, listErr := s.d.List(t.Context(), s.UID) // before the look at the pod, which may go meanwhile
			now, err := w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), before.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) || err == nil && now.UID != before.UID {
				return nil
			}
			if listErr != nil || len(all) == 1 && all[0].State == driver.StateStopped && !all[0].NeedsEnsure && !all[0].IsLeaving {
				t.Fatalf("nothing is asked for: %+v, %v", all, listErr)
			}
			_, ensureErr := s.ensure(t)
			return fmt.Errorf("it has finalizers %v: %w, %w", now.Finalizers, err, ensureErr)
		})
	}
	assert.ErrorIs(t, "the start of what is refused", assert.ErrorOf(refused.ensure(t)), driver.ErrUnsupported, "hostPort")
}

// TestMadeByALostPod checks that the disks of a guest that was seen to run count as made after its pod is lost,
// although nothing has recorded that while it ran.
func TestMadeByALostPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	run := s.reach(t, driver.StateRunning).Run
	for n := range s.Objects {
		s.Objects[n].Made, s.Objects[n].Images = false, nil
	}
	s.SeenRun = run
	w.forceRemove(t, s.pod(t))
	s.wantRefusal(t, reasonPodLost, "is gone")
	s.d.reader.AssertedOff = func(types.UID) types.UID { return types.UID(run) }
	assert.Eventually(t, "another pod is made", func(t testing.TB) error {
		if _, err := s.ensure(t); err != nil {
			return err
		}
		for _, disk := range []string{objects.RootDisk, "data"} {
			if r := s.d.newConvergence(s.ServerSpec).recorded(objects.KindClaim, objects.ClaimName(s.base(), disk)); r == nil || !r.Made {
				return fmt.Errorf("the disk %q is recorded as %+v", disk, r)
			}
		}
		if p := s.pod(t); string(p.UID) == run || objects.ReadSettings(p).MadeFrom == nil {
			return errors.New("the pod may make a new root disk")
		}
		return nil
	})
	if got, err := s.ensure(t); err != nil || got.Refused != nil {
		t.Errorf("of an image that is not known, %+v is refused, %v", got.Refused, err)
	}
}

// TestRejectionOfAPodThatRan checks that the rejection of a pod whose guest was seen to run has to last before
// another pod is made: a kubelet that was restarted may not have ended the container yet.
func TestRejectionOfAPodThatRan(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	s.SeenRun = s.reach(t, driver.StateRunning).Run
	now := testingclock.NewFakeClock(s.d.Clock.Now())
	s.d.Clock = now
	w.kubelet.set(func(k *kubelet) {
		p := s.pod(t)
		delete(k.stop, p.UID)
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity", Message: "a label of the node has changed"}
		assert.NoError(t, assert.ErrorOf(w.kube.CoreV1().Pods(s.Namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})))
	})
	for range 3 {
		assert.ErrorIs(t, "just rejected", assert.ErrorOf(s.ensure(t)), driver.ErrRetry, "may have yet to end its container")
		now.Step(rejectionDelay / 4)
	}
	if held, err := s.holds(t); !held || err != nil {
		t.Errorf("the rejected pod is held: %t, %v", held, err)
	}
	now.Step(rejectionDelay / 4)
	if got := s.reach(t, driver.StateRunning); got.Run == s.SeenRun {
		t.Error("the run has not changed")
	}
}
