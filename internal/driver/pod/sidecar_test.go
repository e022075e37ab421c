// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// addSidecar has the cluster add a container to each new pod of a world, as a service mesh does.
func (w *world) addSidecar(t *testing.T) {
	t.Helper()
	w.mutatePods(t, "sidecar", admissionv1.Mutation{
		PatchType: admissionv1.PatchTypeJSONPatch,
		JSONPatch: &admissionv1.JSONPatch{Expression: `[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{name: "proxy", image: "mesh"}}]`},
	})
	assert.Eventually(t, "pods get a sidecar", func(t testing.TB) error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
		made, err := w.kube.CoreV1().Pods(w.namespace).Create(t.Context(), tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && len(made.Spec.Containers) < 2 {
			err = errors.New("it has none")
		}
		return err
	})
}

// waitForOthers waits until the pod of a run has ended, and checks that it shows the end of the machine.
func (s *server) waitForOthers(t *testing.T, run string) {
	t.Helper()
	assert.Eventually(t, "the pod has ended", func(t testing.TB) error {
		got, p := s.list(t), s.pod(t)
		if got.State != driver.StateStopped {
			return fmt.Errorf("the server is %s: %s", got.State, got.Progress)
		}
		assert.True(t, got.Exit.Code == 0 && !got.Exit.Evicted && got.Disruption == "" && !got.NeedsEnsure && p.DeletionTimestamp == nil && string(p.UID) == run,
			"the server is %+v, its exit %+v, and its pod %+v", got, got.Exit, p.ObjectMeta)
		return nil
	})
}

// TestSidecar checks that the containers which a webhook has added to a pod are ended once the machine has, and
// not before, that the pod still shows how the machine ended, and that the next run can follow.
func TestSidecar(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.addSidecar(t)
	for name, s := range map[string]*server{"durable": w.newServer(t, "durable"), "ephemeral": w.newEphemeral(t, "ephemeral")} {
		t.Run(name, func(t *testing.T) {
			run := s.reach(t, driver.StateRunning).Run
			p := s.pod(t)
			assert.Require(t, len(p.Spec.Containers) == 2 && !objects.HasEndDeadline(p), "the pod is %+v", p.Spec)
			assert.NoError(t, w.kubelet.Finish(t.Context(), s.pod(t)))
			if got := s.list(t); got.State != driver.StateStopping || !got.NeedsEnsure || got.Exit == nil || got.Exit.Code != 0 {
				t.Errorf("the server is %+v, its exit %+v", got, got.Exit)
			}
			assert.NoError(t, assert.ErrorOf(s.d.Ensure(t.Context(), s.ServerSpec)))
			s.waitForOthers(t, run)
			assert.True(t, s.reach(t, driver.StateRunning).Run != run, "it runs on")
			s.deleteAll(t)
		})
	}
}

// testSidecar has the real controller run a VirtualMachine for one job beside a sidecar. The job is done once it has
// ended, and is not done again, although nothing outlives the pod of an ephemeral server.
func testSidecar(t *testing.T, w *world) {
	w.addSidecar(t)
	v := w.createVM(t, `{
		"driver": "pod", "ephemeral": true, "restartPolicy": "Never", "image": {"source": "oci://registry.example/boot:1", "pullPolicy": "Never"},
		"resource": {"cpu": "1", "memory": "256Mi"}
	}`)
	v.wait(t, "Active", false)
	v.waitPassed(t)
	s := &server{w: w}
	s.Namespace, s.Name, s.UID = w.namespace, v.name, v.uid
	first := s.pod(t)
	assert.NoError(t, w.kubelet.Finish(t.Context(), first))
	v.wait(t, "Stopped", false)
	v.waitEvents(t, "Created", "Started", "Completed")
	p := s.pod(t)
	assert.True(t, p.UID == first.UID && p.DeletionTimestamp == nil, "the pod is %+v", p.ObjectMeta)
	w.wantNoWarnings(t)
}
