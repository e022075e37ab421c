// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
)

// backup is a finalizer of another program.
const backup = "backup.example/hold"

// holdObjects adds the finalizer of another program to an object of the server, by a patch of its metadata.
func holdObjects(t *testing.T, finalizers []string, patch func(content []byte) error) (release func()) {
	t.Helper()
	write := func(all []string) {
		t.Helper()
		assert.NoError(t, patch([]byte(fmt.Sprintf(`{"metadata": {"finalizers": ["%s"]}}`, strings.Join(all, `","`)))))
	}
	write(append(finalizers, backup))
	return func() {
		t.Helper()
		assert.NoError(t, patch([]byte(`{"metadata": {"finalizers": null}}`)))
	}
}

func (s *server) holdPod(t *testing.T) (release func()) {
	t.Helper()
	return holdObjects(t, s.pod(t).Finalizers, func(content []byte) error {
		return assert.ErrorOf(s.w.kube.CoreV1().Pods(s.Namespace).Patch(t.Context(), s.base(), types.MergePatchType, content, metav1.PatchOptions{}))
	})
}

// waitHeld waits until the list says of a server in a state that the finalizer of another program holds an object.
func (s *server) waitHeld(t *testing.T, want driver.State, object string) {
	t.Helper()
	assert.Eventually(t, "what holds "+s.Name+" is named", func(t testing.TB) error {
		if s.Power == driver.PowerOff { // it is being deleted
			if err := s.d.Delete(t.Context(), s.Target, false); err != nil {
				return err
			}
		} else if _, err := s.ensure(t); err != nil {
			return err
		}
		got := s.list(t)
		if got.State != want || !strings.Contains(got.Progress, object+" ") || !strings.Contains(got.Progress, "its finalizers hold it: "+backup) || got.NeedsEnsure {
			return fmt.Errorf("it is %s: %s", got.State, got.Progress)
		}
		return nil
	})
}

// TestHeldObjects checks that a server whose pod or PVC is held by the finalizer of another program says so, by
// the names of both, while it is to start again and while it is deleted, and that it goes on after that.
func TestHeldObjects(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	first := s.reach(t, driver.StateRunning)
	release := s.holdPod(t)
	assert.NoError(t, s.w.kube.CoreV1().Pods(s.Namespace).Delete(t.Context(), s.base(), metav1.DeleteOptions{}))
	s.waitHeld(t, driver.StateStopped, "the pod "+s.Namespace+"/"+s.base())
	got := s.list(t)
	assert.True(t, got.IsLeaving && got.Exit != nil, "the server whose pod is held is %+v", got)
	release()
	assert.True(t, s.reach(t, driver.StateRunning).Run != first.Run, "the run has not changed")

	claims := s.w.kube.CoreV1().PersistentVolumeClaims(s.Namespace)
	release = holdObjects(t, []string{podtest.Protection}, func(content []byte) error {
		return assert.ErrorOf(claims.Patch(t.Context(), s.base(), types.MergePatchType, content, metav1.PatchOptions{}))
	})
	s.Power = driver.PowerOff
	s.waitHeld(t, driver.StateRemoving, "PersistentVolumeClaim "+s.Namespace+"/"+s.base())
	release()
	s.deleteAll(t)
}

// TestHeldGatedPod checks that the pod of an ephemeral server that never ran, which another program holds, is
// named too, and is removed once it is released.
func TestHeldGatedPod(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newEphemeral(t, "gated")
	s.turn(t, driver.PowerOff, driver.StateStopped)
	release := s.holdPod(t)
	s.waitHeld(t, driver.StateRemoving, "the pod "+s.Namespace+"/"+s.base())
	p := s.pod(t)
	assert.True(t, p.DeletionTimestamp != nil && p.Status.Phase == corev1.PodPending, "the pod is %+v", p.ObjectMeta)
	release()
	s.deleteAll(t)
}
