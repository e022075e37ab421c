// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
)

// waitUntilBound waits until the pod has a node.
func (s *server) waitUntilBound(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the pod has a node", func(t testing.TB) error {
		return assert.ErrorUnless(s.pod(t).Spec.NodeName != "", "it has none")
	})
}

// wantNeverRan checks that the pod does not run once its kubelet has started a later one.
func (s *server) wantNeverRan(t *testing.T, later *server) {
	t.Helper()
	s.waitUntilBound(t)
	later.reach(t, driver.StateRunning)
	p := s.pod(t)
	assert.True(t, p.Status.Phase == corev1.PodPending, "the pod %s is %s", p.Name, p.Status.Phase)
	later.deleteAll(t)
}

// TestEphemeral follows a server whose pod lacks a scheduling gate. It runs nothing before it has its
// Secret, which another leader makes for the pod that it finds.
func TestEphemeral(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	s.record(t)
	assert.NoError(t, s.converge(t).createPod(t.Context()))
	made := s.pod(t)
	assert.True(t, len(made.Spec.SchedulingGates) == 0, "the pod has a scheduling gate")
	s.wantNeverRan(t, w.newEphemeral(t, "other"))
	s.d, s.Epoch = w.open(t), 2
	got := s.reach(t, driver.StateRunning)
	assert.True(t, got.Run == string(made.UID), "the run is %s, want that of the pod %s", got.Run, made.UID)
	s.turn(t, driver.PowerOff, driver.StateStopped)
	assert.Eventually(t, "the pod of a server that is off has a scheduling gate", func(t testing.TB) error {
		got, err := s.ensure(t)
		if err == nil && (got.State != driver.StateStopped || !objects.IsGated(s.pod(t))) {
			err = fmt.Errorf("it has none: %+v", got)
		}
		return err
	})
	s.turn(t, driver.PowerOn, driver.StateRunning)
	s.deleteAll(t)
	s.wantGone(t)
}

// TestLateEphemeralPod has a deposed leader create its pod when the server is gone. It runs nothing,
// and is removed.
func TestLateEphemeralPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	s.record(t)
	deposed := s.converge(t)
	s.d, s.Epoch = w.open(t), 2
	s.reach(t, driver.StateRunning)
	secret := objects.SecretOf(s.pod(t))
	s.deleteAll(t)
	assert.Eventually(t, "the Secret is collected", func(t testing.TB) error {
		_, err := w.kube.CoreV1().Secrets(s.Namespace).Get(t.Context(), secret, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	assert.NoError(t, deposed.createPod(t.Context()))
	s.wantNeverRan(t, w.newEphemeral(t, "other"))

	ended := *s.recordOf(objects.KindPod)
	ended.Ended = true
	s.Objects = []driver.Object{ended}
	assert.ErrorIs(t, "a pod that is not recorded", assert.ErrorOf(s.ensure(t)), driver.ErrRetry, "was not made for this VirtualMachine")
	assert.NoError(t, w.kube.CoreV1().Pods(s.Namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{}))
	s.reach(t, driver.StateRunning)
	s.deleteAll(t)
	s.wantGone(t)
}

// TestEphemeralSecret has a tenant make the Secret first, and the controller end before it has
// recorded the Secret that it makes. Either way another pod gets another Secret.
func TestEphemeralSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "taken")
	theirs := s.takeSecretNames(t, 1)[0]
	s.reach(t, driver.StateRunning)
	if name := objects.SecretOf(s.pod(t)); name == theirs || name != s.recordOf(objects.KindSecret).Name {
		t.Errorf("the pod has the Secret %s; a tenant has made %s, and the record is %+v", name, theirs, s.Objects)
	}
	s.deleteAll(t)
	assert.ErrorIs(t, "the tenant's Secret", assert.ErrorOf(w.kube.CoreV1().Secrets(s.Namespace).Get(t.Context(), theirs, metav1.GetOptions{})), nil)

	s = w.newEphemeral(t, "crash")
	s.failWrites = true
	s.reach(t, driver.StateRunning)
	before := s.pod(t)
	s.failWrites, s.d = false, w.open(t)
	assert.True(t, s.reach(t, driver.StateRunning).Run != string(before.UID), "a pod runs with a Secret which may be anyone's")
	s.deleteAll(t)
	s.wantGone(t)
}

// TestEphemeralWrites counts what the driver writes for a server from its creation to its removal.
// For a pod, only the removal of the finalizer is added to the writes that a bare pod needs.
func TestEphemeralWrites(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config, count := w.countRequests()
	s := w.newEphemeral(t, "web")
	s.d = openAs(t, config, clusterID)
	s.reach(t, driver.StateRunning)
	s.Power, s.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	assert.NoError(t, assert.ErrorOf(s.ensure(t)))
	assert.Eventually(t, "the machine has ended", func(t testing.TB) error {
		if got := s.list(t); got.State != driver.StateStopped {
			return fmt.Errorf("it is %s", got.State)
		}
		if grace := s.pod(t).DeletionGracePeriodSeconds; grace == nil || *grace > 0 {
			return errors.New("the kubelet has yet to remove the pod") // else its finalizer is removed twice
		}
		return nil
	})
	s.deleteAll(t)
	written := count.all()
	maps.DeleteFunc(written, func(what string, _ int) bool {
		return strings.HasPrefix(what, "GET ") || strings.HasPrefix(what, "LIST ")
	})
	want := map[string]int{"POST pods": 1, "POST secrets": 1, "DELETE pods": 1, "PUT pods": 1}
	assert.True(t, maps.Equal(written, want), "the driver has written %v, want %v", written, want)
	s.wantGone(t)
}

// TestRunningWithoutRecordOfSecret has a leader end before the status has recorded the Secret of a pod
// that runs. The next one cannot reach the machine, and leaves it alone.
func TestRunningWithoutRecordOfSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	first := s.reach(t, driver.StateRunning)
	s.recordOf(objects.KindSecret).UID = ""
	s.d = w.open(t)
	got, err := s.ensure(t)
	assert.True(t, err == nil && got.State == driver.StateRunning && got.Run == first.Run, "the next leader has %+v, %v, want the run %s", got, err, first.Run)
	s.deleteAll(t)
}

// TestSecretIsAskedFor checks that a pod without a gate asks for an Ensure until it is known to have its
// Secret, to the leader that made the pod and to the next one.
func TestSecretIsAskedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	s.Placement.NodeSelector = map[string]string{"zone": "none"}
	s.record(t)
	w.kubelet.Lock() // no pod starts
	defer w.kubelet.Unlock()
	assert.NoError(t, s.converge(t).createPod(t.Context()))
	wants := func(when string, want bool) {
		t.Helper()
		if got := s.list(t); got.State != driver.StateStarting || got.NeedsEnsure != want {
			t.Errorf("%s the server is %s and asks for an Ensure: %t, want %t", when, got.State, got.NeedsEnsure, want)
		}
	}
	wants("without a Secret", true)
	s.d, s.Epoch = w.open(t), 2
	wants("with the next leader", true)
	got, err := s.ensure(t)
	assert.True(t, err == nil && !got.NeedsEnsure, "Ensure gives %+v, %v", got, err)
	wants("with its Secret", false)
	s.d, s.Epoch = w.open(t), 3
	got, err = s.ensure(t)
	assert.True(t, err == nil && !got.NeedsEnsure, "Ensure of a later leader gives %+v, %v", got, err)
	wants("with a later leader", false)
}

// TestStartOfChangedEphemeral checks that a server that was changed while it was off starts as its spec
// says, and that an unchanged one starts with the pod that stood for it.
func TestStartOfChangedEphemeral(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	s.Power = driver.PowerOff
	s.reach(t, driver.StateStopped)
	unchanged := s.pod(t)
	s.turn(t, driver.PowerOn, driver.StateRunning)
	assert.True(t, s.pod(t).UID == unchanged.UID, "an unchanged server starts with another pod")
	for name, change := range map[string]func(){
		"cpu":        func() { s.CPUMilli = 500 },
		"pullPolicy": func() { s.Image.PullPolicy = driver.PullAlways },
	} {
		s.turn(t, driver.PowerOff, driver.StateStopped)
		assert.Eventually(t, "the pod has a scheduling gate", func(t testing.TB) error {
			if _, err := s.ensure(t); err != nil {
				return err
			}
			p, err := w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), unchanged.Name, metav1.GetOptions{})
			if err == nil && !objects.IsGated(p) {
				err = errors.New("it has none")
			}
			return err // there is none between the pod that has ended and the next one
		})
		gated := s.pod(t)
		change()
		s.turn(t, driver.PowerOn, driver.StateRunning)
		if got := s.pod(t); got.UID == gated.UID || objects.ReadSettings(got).CPUMilli != s.CPUMilli {
			t.Errorf("%s: the pod %s runs with %+v, after %s had a gate", name, got.UID, objects.ReadSettings(got), gated.UID)
		}
	}
	s.deleteAll(t)
	s.wantGone(t)
}

// TestForeignPodAfterLoss has a user put another pod in the place of one that is lost. That it
// ends proves nothing about the lost one.
func TestForeignPodAfterLoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "web")
	s.reach(t, driver.StateRunning)
	lost := s.pod(t)
	w.forceRemove(t, lost)
	s.wantRefusal(t, "PodLost", "is gone")

	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = true })
	pods := w.kube.CoreV1().Pods(s.Namespace)
	theirs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: lost.Name, Labels: lost.Labels}}
	theirs.Spec.Containers = []corev1.Container{{Name: objects.ContainerName, Image: "theirs"}}
	theirs, err := pods.Create(t.Context(), theirs, metav1.CreateOptions{})
	assert.NoError(t, err)
	assert.Eventually(t, "the user's pod runs", func(t testing.TB) error {
		if p := s.pod(t); p.Status.Phase != corev1.PodRunning {
			return errors.New(string(p.Status.Phase))
		}
		return nil
	})
	assert.NoError(t, pods.Delete(t.Context(), theirs.Name, metav1.DeleteOptions{}))
	assert.Eventually(t, "the user's pod has ended", func(t testing.TB) error {
		if p := s.pod(t); p.Status.Phase != corev1.PodSucceeded {
			return errors.New(string(p.Status.Phase))
		}
		return nil
	})
	assert.ErrorIs(t, "while the user's pod is there", assert.ErrorOf(s.ensure(t)), driver.ErrRetry, "is not this VirtualMachine's")
	w.kubelet.Set(func(k *podtest.Kubelet) { k.IsSlow = false })
	s.wantRefusal(t, "PodLost", "is gone")
	r := s.recordOf(objects.KindPod)
	assert.True(t, r.UID == lost.UID && !r.Ended, "the record is %+v, want that of the lost pod %s", r, lost.UID)
}

// forceRemove removes a pod and its finalizers, as if its node were cut off.
func (w *world) forceRemove(t *testing.T, p *corev1.Pod) {
	t.Helper()
	w.kubelet.Lock()
	defer w.kubelet.Unlock()
	delete(w.kubelet.Running, p.UID)
	patch := []byte(`{"metadata": {"finalizers": null}}`)
	pods := w.kube.CoreV1().Pods(p.Namespace)
	assert.NoError(t, assert.ErrorOf(pods.Patch(t.Context(), p.Name, types.MergePatchType, patch, metav1.PatchOptions{})))
	assert.NoError(t, pods.Delete(t.Context(), p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
}

// TestDeletedSecret checks that a Secret which somebody deletes, or which another program holds, disturbs neither a
// machine that runs nor the next run, and that a pod which has not started gets another once it is deleted. The
// driver may not read Secrets, and so cannot tell.
func TestDeletedSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	secrets := w.kube.CoreV1().Secrets(w.namespace)
	s := w.newServer(t, "web")
	first := s.reach(t, driver.StateRunning)
	name := objects.SecretOf(s.pod(t))
	hold := []byte(`{"metadata":{"finalizers":["example.com/hold"]}}`)
	assert.NoError(t, assert.ErrorOf(secrets.Patch(t.Context(), name, types.MergePatchType, hold, metav1.PatchOptions{})))
	assert.NoError(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{}))
	got, err := s.ensure(t)
	assert.True(t, err == nil && got.State == driver.StateRunning && got.Err == nil && got.Run == first.Run, "the server is %+v, %v", got, err)
	if next := s.restart(t); next.Run == first.Run || objects.SecretOf(s.pod(t)) == name {
		t.Errorf("the next run is %s, with the Secret %s", next.Run, objects.SecretOf(s.pod(t)))
	}
	s.deleteAll(t)
	assert.NoError(t, assert.ErrorOf(secrets.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})))

	early := w.newEphemeral(t, "early")
	w.kubelet.Lock() // no pod starts
	early.reach(t, driver.StateStarting)
	assert.NoError(t, secrets.Delete(t.Context(), objects.SecretOf(early.pod(t)), metav1.DeleteOptions{}))
	waits := early.pod(t)
	w.kubelet.Unlock()
	assert.NoError(t, w.kube.CoreV1().Pods(w.namespace).Delete(t.Context(), waits.Name, metav1.DeleteOptions{}))
	assert.True(t, early.reach(t, driver.StateRunning).Run != string(waits.UID), "the pod has started without its Secret")
	early.deleteAll(t)
}
