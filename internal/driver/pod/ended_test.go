// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
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
			assert.Require(t, listErr == nil && (len(all) != 1 || all[0].State != driver.StateStopped || all[0].NeedsEnsure || all[0].IsLeaving),
				"nothing is asked for: %+v, %v", all, listErr)
			_, ensureErr := s.ensure(t)
			return fmt.Errorf("it has finalizers %v: %w, %w", now.Finalizers, err, ensureErr)
		})
	}
	assert.ErrorIs(t, "the start of a refused server", assert.ErrorOf(refused.ensure(t)), driver.ErrUnsupported, "hostPort")
}

// TestMadeByALostPod checks that the disks of a guest that was seen to run count as made after its pod is lost,
// although nothing has recorded that while it ran.
func TestMadeByALostPod(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	run := s.reach(t, driver.StateRunning).Run
	for n := range s.Objects {
		s.Objects[n].Made, s.Objects[n].Images = false, nil
	}
	s.SeenRun = run
	w.forceRemove(t, s.pod(t))
	s.wantRefusal(t, "PodLost", "is gone")
	s.d.reader.PodAssertedOff = func(types.UID) types.UID { return types.UID(run) }
	assert.Eventually(t, "another pod is made", func(t testing.TB) error {
		if _, err := s.ensure(t); err != nil {
			return err
		}
		for _, disk := range []string{objects.RootDisk, "data"} {
			if r := objects.FindRecorded(s.Objects, objects.KindClaim, objects.ClaimName(s.base(), disk)); r == nil || !r.Made {
				return fmt.Errorf("the disk %q is recorded as %+v", disk, r)
			}
		}
		p := s.pod(t)
		return assert.ErrorUnless(string(p.UID) != run && objects.ReadSettings(p).MadeFrom != nil, "the pod may make a new root disk")
	})
	got, err := s.ensure(t)
	assert.True(t, err == nil && got.Refused == nil, "of an image that is not known, %+v is refused, %v", got.Refused, err)
}

// rejectPod has the kubelet reject the pod of a server, as one that was restarted does before it ends the container.
func (s *server) rejectPod(t *testing.T) {
	t.Helper()
	s.w.kubelet.Set(func(k *podtest.Kubelet) {
		p := s.pod(t)
		delete(k.Running, p.UID)
		p.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "NodeAffinity", Message: "a label of the node has changed"}
		assert.NoError(t, assert.ErrorOf(s.w.kube.CoreV1().Pods(s.Namespace).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})))
	})
}

// rejectionDelay is how long a rejection has to last.
const rejectionDelay = time.Minute

// TestRejectedPods checks that the rejection of a pod has to last before it proves an end, for a start, a deletion
// and a release alike, although nothing has recorded that the guest has run.
func TestRejectedPods(t *testing.T) {
	t.Parallel()
	w := newIsolatedWorld(t)
	for name, step := range map[string]func(s *server) error{
		"start":   func(s *server) error { return assert.ErrorOf(s.ensure(t)) },
		"delete":  func(s *server) error { return s.d.Delete(t.Context(), s.Target, false) },
		"release": func(s *server) error { return s.d.ReleaseEnded(t.Context(), s.UID) },
	} {
		s := w.newServer(t, name)
		first := s.reach(t, driver.StateRunning)
		now := testingclock.NewFakeClock(s.d.Clock.Now())
		s.d.reader.Clock = now
		s.rejectPod(t)
		for range 3 {
			assert.NoError(t, step(s))
			held, err := s.holds(t)
			assert.True(t, held && err == nil && s.pod(t).UID == types.UID(first.Run), "%s: the pod that was just rejected is held: %t, %v", name, held, err)
			if got := s.list(t); got.Exit != nil || name == "start" && !strings.Contains(got.Progress, "may have yet to end its container") {
				t.Errorf("%s: the server is %+v", name, got)
			}
			now.Step(rejectionDelay / 4)
		}
		now.Step(rejectionDelay / 4)
		assert.Eventually(t, name+": the pod is released", func(testing.TB) error {
			err := step(s)
			if p, getErr := w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{}); getErr == nil && string(p.UID) == first.Run && len(p.Finalizers) > 0 {
				err = fmt.Errorf("it has %v, %w", p.Finalizers, err)
			}
			return err
		})
	}
}

// TestAssertionAfterTheEnd checks that an operator's assertion about a pod that has ended does not
// count while its node is ready: the kubelet has yet to unmount the volumes, and removes the pod
// then.
func TestAssertionAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.open(t)
	d.reader.PodAssertedOff = func(types.UID) types.UID { return "run" }
	nodes := w.kube.CoreV1().Nodes()
	ready, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ready-" + w.namespace}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	assert.NoError(t, assert.ErrorOf(nodes.UpdateStatus(t.Context(), ready, metav1.UpdateOptions{})))
	for node, want := range map[string]bool{ready.Name: false, "gone-" + w.namespace: true} {
		ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "run", DeletionTimestamp: new(metav1.Now())}}
		ended.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: objects.ContainerName}}}
		ended.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: objects.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
		}}
		i, err := d.reader.ReadPod(t.Context(), ended)
		assert.NoError(t, err)
		exit := i.AssertedEnd()
		assert.True(t, (exit != nil) == want, "on %s the assertion gives the end %+v, want one: %t", node, exit, want)
	}
}

// TestRefusedAssertion checks that an assertion about a pod whose node was ready does not count when
// the node stops to answer later, until an operator has taken it back and made it again.
func TestRefusedAssertion(t *testing.T) {
	t.Parallel()
	w, s := newServer(t)
	asserted := types.UID("")
	s.d.reader.PodAssertedOff = func(types.UID) types.UID { return asserted }
	nodes := w.kube.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	setReady := func(status corev1.ConditionStatus) {
		t.Helper()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		node, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		assert.NoError(t, err)
	}
	setReady(corev1.ConditionTrue)
	first := s.reach(t, driver.StateRunning)

	asserted = types.UID(first.Run)
	assert.True(t, s.list(t).NeedsEnsure, "a refused assertion is not to be recorded")
	valid := s.Image.Source
	s.Image.Source = "invalid"
	assert.ErrorIs(t, "an invalid spec", assert.ErrorOf(s.ensure(t)), driver.ErrInvalid, "spec.image.source")
	assert.True(t, !s.list(t).NeedsEnsure, "a refused assertion is not recorded while the spec is invalid")
	s.Image.Source = valid
	s.reach(t, driver.StateRunning)
	setReady(corev1.ConditionUnknown)
	got := s.reach(t, driver.StateRunning)
	assert.True(t, got.Run == first.Run && !s.list(t).NeedsEnsure, "after an assertion that was refused the server is %+v", got)
	s.Power = driver.PowerOff
	assert.Eventually(t, "the refusal is reported", func(t testing.TB) error {
		got, err := s.ensure(t)
		assert.True(t, err != nil || got.State != driver.StateStopping || strings.Contains(got.Progress, "asserted while its node was ready"),
			"the server that stops says %q", got.Progress)
		return err
	})
	s.reach(t, driver.StateStopped)
	s.turn(t, driver.PowerOn, driver.StateRunning)

	second := s.list(t)
	asserted = types.UID(second.Run)
	if got, err := s.ensure(t); err == nil && got.State == driver.StateRunning && got.Run == second.Run {
		t.Error("an assertion about a node that is not ready does not count")
	}
	s.deleteAll(t)
}

// TestDisruption checks that the end of a server that was drained says so, as long as that end is the
// last one, and that the removal of a pod that has ended by itself is not taken for a disruption.
func TestDisruption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "drained")
	got := s.reach(t, driver.StateRunning)
	assert.True(t, got.Host == nodeName && got.Disruption == "", "a server that runs is %+v", got)
	assert.NoError(t, s.evict(t))
	s.waitStopped(t)
	got = s.list(t)
	assert.True(t, strings.Contains(got.Disruption, "evicted, as by a drain, from node "+nodeName), "a server that was drained is %+v", got)
	s.turn(t, driver.PowerOff, driver.StateStopped) // which removes the pod
	got = s.list(t)
	assert.True(t, strings.Contains(got.Disruption, "evicted"), "without its pod, a server that was drained is %+v", got)
	s.turn(t, driver.PowerOn, driver.StateRunning)

	ended := s.pod(t)
	assert.NoError(t, w.kubelet.Finish(t.Context(), ended))
	s.waitStopped(t)
	assert.Eventually(t, "the next pod runs", func(t testing.TB) error {
		got, err := s.ensure(t)
		listed := s.list(t)
		assert.True(t, listed.Disruption == "", "a server that has ended by itself is %+v", listed)
		if err == nil && (got.State != driver.StateRunning || got.Run == string(ended.UID)) {
			err = fmt.Errorf("it is %s", got.State)
		}
		return err
	})
}

// waitStopped waits until the list has the end of a server.
func (s *server) waitStopped(t *testing.T) {
	t.Helper()
	assert.Eventually(t, s.Name+" has ended", func(t testing.TB) error {
		got := s.list(t)
		return assert.ErrorUnless(got.State == driver.StateStopped && got.Exit != nil, "it is %s", got.State)
	})
}
