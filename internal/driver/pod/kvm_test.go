// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/kvm"
	"cloudnative.tw/drover/test/assert"
)

// TestKVM checks what a new pod requests, and what its machine is to use, before and after a node
// offers KVM.
func TestKVM(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	name := corev1.ResourceName("kvm.example/" + w.namespace)
	now := clocktesting.NewFakePassiveClock(time.Now())
	drivers := map[kvm.Mode]*Driver{}
	for _, mode := range []kvm.Mode{kvm.Auto, kvm.Require, kvm.Never} {
		d := w.open(t)
		d.kvm.Mode, d.kvm.Resource, d.kvm.Clock = mode, name, now
		drivers[mode] = d
	}
	check := func(vm string, mode kvm.Mode, selector map[string]string, accelerator string, requests int64) {
		t.Helper()
		s := w.newServer(t, vm)
		s.d, s.Placement.NodeSelector = drivers[mode], selector
		s.reach(t, driver.StateRunning)
		described, has := s.described(t), s.pod(t).Spec.Containers[0].Resources
		requested, limited := has.Requests[name], has.Limits[name]
		if described.Accelerator != accelerator || requested.Value() != requests || limited.Value() != requests {
			t.Errorf("%s: the machine uses %s, and the pod requests %s of %s of KVM, want %s and %d of both",
				vm, described.Accelerator, requested.String(), limited.String(), accelerator, requests)
		}
	}
	check("without-a-node", kvm.Auto, nil, "auto", 0)
	check("required-without-a-node", kvm.Require, nil, "kvm", 1)
	node := w.addKVMNode(t, name)
	check("soon-after", kvm.Auto, nil, "auto", 0)
	now.SetTime(now.Now().Add(time.Minute))
	check("not-ready", kvm.Auto, nil, "auto", 0) // by the taint that a new node gets
	node.Spec.Taints = nil
	assert.NoError(t, assert.ErrorOf(w.kube.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{})))
	now.SetTime(now.Now().Add(time.Minute))
	check("with-a-node", kvm.Auto, nil, "auto", 1)
	check("selected", kvm.Auto, map[string]string{"zone": w.namespace}, "auto", 1)
	check("elsewhere", kvm.Auto, map[string]string{"zone": "other"}, "auto", 0)
	check("required", kvm.Require, nil, "kvm", 1)
	check("never", kvm.Never, nil, "tcg", 0)
}

// addKVMNode adds a node that offers a resource, of a zone named as the world's namespace.
func (w *world) addKVMNode(t *testing.T, name corev1.ResourceName) *corev1.Node {
	t.Helper()
	nodes := w.kube.CoreV1().Nodes()
	meta := metav1.ObjectMeta{Name: "kvm-" + w.namespace, Labels: map[string]string{"zone": w.namespace}}
	node, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: meta}, metav1.CreateOptions{})
	assert.NoError(t, err)
	node.Status.Allocatable = corev1.ResourceList{name: resource.MustParse("100")}
	node.Status.Capacity = node.Status.Allocatable
	if node, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return node
}
