// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestAssertionAfterTheEnd checks that an operator's assertion about a pod that has ended does not
// count while its node is ready: the kubelet has yet to unmount the volumes, and removes the pod
// then.
func TestAssertionAfterTheEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.open(t)
	d.AssertedOff = func(types.UID) types.UID { return "run" }
	nodes := w.kube.CoreV1().Nodes()
	ready, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "ready-" + w.namespace}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ready.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := nodes.UpdateStatus(t.Context(), ready, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]bool{ready.Name: false, "gone-" + w.namespace: true} {
		ended := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "run", DeletionTimestamp: new(metav1.Now())}}
		ended.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: containerName}}}
		ended.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: containerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}},
		}}
		i := &instance{driver: d, uid: "vm", pod: ended}
		if err := i.readNode(t.Context()); err != nil {
			t.Fatal(err)
		}
		if exit := i.assertedEnd(); (exit != nil) != want {
			t.Errorf("on %s the assertion gives the end %+v, want one: %t", node, exit, want)
		}
	}
}
