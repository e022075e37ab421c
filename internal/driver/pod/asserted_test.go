// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// TestAssertionAfterTheEnd checks that an operator's assertion about a pod that has ended does not
// count while its node is ready: the kubelet has yet to unmount the volumes, and removes the pod
// then.
func TestAssertionAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.open(t)
	d.reader.AssertedOff = func(types.UID) types.UID { return "run" }
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
		if exit := i.AssertedEnd(); (exit != nil) != want {
			t.Errorf("on %s the assertion gives the end %+v, want one: %t", node, exit, want)
		}
	}
}

// TestRefusedAssertion checks that an assertion about a pod whose node was ready does not count when
// the node stops to answer later, until an operator has taken it back and made it again.
func TestRefusedAssertion(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "web")
	asserted := types.UID("")
	s.d.reader.AssertedOff = func(types.UID) types.UID { return asserted }
	nodes := w.kube.CoreV1().Nodes()
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}}, metav1.CreateOptions{})
	assert.NoError(t, err)
	setReady := func(status corev1.ConditionStatus) {
		t.Helper()
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
		if node, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	setReady(corev1.ConditionTrue)
	first := s.reach(t, driver.StateRunning)

	asserted = types.UID(first.Run)
	if !s.list(t).NeedsEnsure {
		t.Error("a refused assertion is not to be recorded")
	}
	valid := s.Image.Source
	s.Image.Source = "invalid"
	assert.ErrorIs(t, "an invalid spec", assert.ErrorOf(s.ensure(t)), driver.ErrInvalid, "spec.image.source")
	if s.list(t).NeedsEnsure {
		t.Error("a refused assertion is not recorded while the spec is invalid")
	}
	s.Image.Source = valid
	s.reach(t, driver.StateRunning)
	setReady(corev1.ConditionUnknown)
	if got := s.reach(t, driver.StateRunning); got.Run != first.Run || s.list(t).NeedsEnsure {
		t.Errorf("after an assertion that was refused the server is %+v", got)
	}
	s.Power = driver.PowerOff
	assert.Eventually(t, "the refusal is reported", func(t testing.TB) error {
		got, err := s.ensure(t)
		if err == nil && got.State == driver.StateStopping && !strings.Contains(got.Progress, "asserted while its node was ready") {
			t.Errorf("the server that stops says %q", got.Progress)
		}
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
