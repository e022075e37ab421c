// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cloudnative.tw/drover/test/assert"
)

// testRestarts checks that one request restarts an ephemeral VirtualMachine once, and that its crashes count,
// although nothing is left of it between two pods.
func testRestarts(t *testing.T, w *world) {
	begun := 0
	w.kubelet.set(func(k *kubelet) {
		begin := k.begin
		k.begin = func(p *corev1.Pod) (string, func() (int32, string), error) {
			begun++
			return begin(p)
		}
	})
	v := w.createVM(t, "web", `{
		"driver": "pod", "ephemeral": true, "image": {"source": "oci://registry.example/boot:1", "pullPolicy": "Never"},
		"resource": {"cpu": "1", "memory": "256Mi"}
	}`)
	v.wait(t, "Active", false)
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	for n, isSlow := range []bool{true, false} {
		first := s.pod(t)
		w.kubelet.set(func(k *kubelet) { k.isSlow = isSlow })
		v.change(t, fmt.Sprintf(`{"restartedAt": "2026-01-02T03:04:0%dZ"}`, n))
		if isSlow {
			s.removeSlowly(t)
		}
		v.waitRun(t, first)
		w.kubelet.set(func(*kubelet) {
			if begun != n+2 {
				t.Errorf("%d pods were begun, want %d", begun, n+2)
			}
		})
	}
	w.kubelet.set(func(k *kubelet) { k.makesDisks = true })
	const crashes = 3
	for range crashes {
		assert.Eventually(t, "the next pod ends", func(t testing.TB) error { return s.endNotStarted(t) })
	}
	assert.Eventually(t, "the crashes are counted", func(t testing.TB) error {
		status := v.status(t)
		if got, _, _ := unstructured.NestedInt64(status, "operation", "attempts"); got != crashes {
			return fmt.Errorf("its status is %v", status)
		}
		return nil
	})
}

// removeSlowly lets the kubelet remove a pod only after its end is recorded.
func (s *server) removeSlowly(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the end of the pod is recorded", func(t testing.TB) error {
		held, err := s.holds(t)
		if held {
			return fmt.Errorf("it has its finalizer: %w", err)
		}
		return err
	})
	s.w.kubelet.set(func(k *kubelet) { k.isSlow = false })
}

// endNotStarted ends a pod that has begun, whose machine says that it could not start its guest.
func (s *server) endNotStarted(t testing.TB) (err error) {
	t.Helper()
	s.w.kubelet.set(func(k *kubelet) {
		p, getErr := k.w.kube.CoreV1().Pods(s.Namespace).Get(t.Context(), s.base(), metav1.GetOptions{})
		if getErr != nil {
			err = getErr
			return
		}
		stop, runs := k.stop[p.UID]
		if !runs {
			err = fmt.Errorf("pod %s has not begun", p.UID)
			return
		}
		_, _ = stop()
		err = k.endPod(t.Context(), p, 7, `{"reason": "NotStarted", "message": "a test"}`)
	})
	return err
}

func (v *vm) status(t testing.TB) map[string]any {
	t.Helper()
	o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
	assert.NoError(t, err)
	status, _, _ := unstructured.NestedMap(o.Object, "status")
	return status
}

// waitRun waits until the VirtualMachine has a pod other than the last one, which runs, and the request for
// a restart is done.
func (v *vm) waitRun(t *testing.T, last *corev1.Pod) {
	t.Helper()
	assert.Eventually(t, v.name+" runs again", func(t testing.TB) error {
		o, err := v.w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		wanted, _, _ := unstructured.NestedString(o.Object, "spec", "restartedAt")
		done, _, _ := unstructured.NestedString(o.Object, "status", "restartedAt")
		run, _, _ := unstructured.NestedString(o.Object, "status", "server", "run")
		phase, _, _ := unstructured.NestedString(o.Object, "status", "phase")
		if phase != "Active" || run == string(last.UID) || done != wanted {
			return fmt.Errorf("its status is %v", o.Object["status"])
		}
		return nil
	})
}
