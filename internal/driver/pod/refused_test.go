// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/test/assert"
)

// mutatePods is podtest.MutatePods for the pods of a world.
func (w *world) mutatePods(t *testing.T, name string, mutation admissionv1.Mutation) (remove func()) {
	t.Helper()
	return podtest.MutatePods(t, w.kube, w.namespace, name, mutation)
}

// renamePorts has the cluster rename the first port of each new pod of a world until restore is called.
func (w *world) renamePorts(t *testing.T) (restore func()) {
	t.Helper()
	remove := w.mutatePods(t, "rename", admissionv1.Mutation{
		PatchType: admissionv1.PatchTypeJSONPatch,
		JSONPatch: &admissionv1.JSONPatch{Expression: `[JSONPatch{op: "replace", path: "/spec/containers/0/ports/0/name", value: "renamed"}]`},
	})
	w.waitForPortName(t, "renamed")
	return func() {
		remove()
		w.waitForPortName(t, "http")
	}
}

// waitForPortName waits until a port http of a new pod gets a name.
func (w *world) waitForPortName(t *testing.T, want string) {
	t.Helper()
	assert.Eventually(t, "a port is named "+want, func(t testing.TB) error {
		tried := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "tried"}, Spec: corev1.PodSpec{Containers: []corev1.Container{
			{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}},
		}}}
		made, err := w.kube.CoreV1().Pods(w.namespace).Create(t.Context(), tried, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		got := made.Spec.Containers[0].Ports[0].Name
		return assert.ErrorUnless(got == want, "it is %s", got)
	})
}

// TestPodThatIsChangedAtItsCreation checks that a pod which the cluster changes while it is created is a
// failure that names the field, and is not replaced by the same call.
func TestPodThatIsChangedAtItsCreation(t *testing.T) {
	t.Parallel()
	for name, isEphemeral := range map[string]bool{"durable": false, "ephemeral": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, s := newServer(t)
			s.Ephemeral, s.Ports = isEphemeral, []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
			restore := w.renamePorts(t)
			const says = "as it was created: ports;"
			assert.ErrorIs(t, "Ensure", assert.ErrorOf(s.ensure(t)), driver.ErrExhausted, says)
			if _, gone := s.holds(t); gone == nil && !isEphemeral { // an ephemeral server's pod may be on a node by then
				t.Error("the pod is left")
			}
			assert.Eventually(t, "it fails again", func(t testing.TB) error {
				if _, err := s.ensure(t); err == nil || !strings.Contains(err.Error(), says) {
					return fmt.Errorf("Ensure returns %w", err)
				}
				return nil
			})
			restore()
			s.reach(t, driver.StateRunning)
			s.deleteAll(t)
		})
	}
}

// TestSecretThatIsTaken checks that a Secret which a tenant has made before the driver is a failure that
// names it.
func TestSecretThatIsTaken(t *testing.T) {
	t.Parallel()
	_, s := newServer(t)
	s.record(t)
	for range 2 {
		taken := s.takeSecretName(t)
		assert.ErrorIs(t, "Ensure", assert.ErrorOf(s.ensure(t)), driver.ErrRetry, "a Secret of the name "+s.Namespace+"/"+taken)
	}
	s.reach(t, driver.StateRunning)
	s.deleteAll(t)
}

// testChangedPods has the real controller make pods that the cluster changes: it says so and waits, and the
// next spec is tried at once.
func testChangedPods(t *testing.T, w *world) {
	t.Helper()
	restore := w.renamePorts(t)
	v := w.createVM(t, `{"driver": "pod", "storageClassName": "growing", "image": {"source": "oci://registry.example/boot:1"},
		"resource": {"cpu": "1", "memory": "32Mi", "rootDisk": "1Mi"}, "ports": [{"name": "http", "port": 80}]}`)
	assert.Eventually(t, "the status says what was changed", func(t testing.TB) error {
		o, err := w.vms.Get(t.Context(), v.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		op, _, _ := unstructured.NestedMap(o.Object, "status", "operation")
		text := fmt.Sprint(op["lastError"])
		return assert.ErrorUnless(op["reason"] == "ObjectRefused" && op["nextRetryTime"] != nil && strings.Contains(text, "ports"), "its operation is %v", op)
	})
	restore()
	v.change(t, `{"resource": {"memory": "48Mi"}}`)
	v.wait(t, "Active", false)
	pods, err := w.kube.CoreV1().Pods(w.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: objects.LabelUID + "=" + string(v.uid)})
	assert.True(t, err == nil && len(pods.Items) == 1, "%d pods are left: %v", len(pods.Items), err)
}
