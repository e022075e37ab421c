// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/pod/kvm"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// testKVM makes one node offer KVM for one machine. The device itself does not exist, so that the machine
// has to emulate.
func testKVM(t *testing.T, w *podWorld) {
	node := shared.Node(2)
	offer := func(change string) {
		setCapacity(t, node.Name, change)
		if err := w.controller.Stop(); err != nil { // the controller caches the nodes
			t.Fatal(err)
		}
		w.startController(t)
	}
	offer(`"add","value":"1"`)
	defer offer(`"remove"`)
	g := w.createGuest(t, "kvm", func(spec *api.VirtualMachineSpec) { spec.Ephemeral = true })
	pod := g.pod(t)
	requested := pod.Spec.Containers[0].Resources.Limits[kvm.DefaultResource]
	assert.True(t, pod.Spec.NodeName == node.Name && requested.Value() == 1,
		"the pod is on %s and requests %s of KVM, want %s and 1", pod.Spec.NodeName, requested.String(), node.Name)
	g.waitFor(t, func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(vm.Status.Server != nil && vm.Status.Server.Accelerator == "tcg", "the server is %+v, want accelerator tcg", vm.Status.Server)
	})
	waiting := w.create(t, w.newVM("kvm-too", "100m", "64Mi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.Image, spec.Ephemeral = &api.Image{Source: "oci://" + guestImage, PullPolicy: api.PullNever}, true
	}))
	waiting.waitFor(t, framework.HasMessage("Insufficient "+kvm.DefaultResource))
	waiting.delete(t)
	g.delete(t)
}

// setCapacity adds KVM to the capacity of a node, or removes it, as a device plugin would.
func setCapacity(t *testing.T, node, change string) {
	t.Helper()
	path := "/status/capacity/" + strings.ReplaceAll(kvm.DefaultResource, "/", "~1")
	patch := fmt.Sprintf(`[{"op":%s,"path":%q}]`, change, path)
	nodes := shared.Client.CoreV1().Nodes()
	assert.NoError(t, assert.ErrorOf(nodes.Patch(context.WithoutCancel(t.Context()), node, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}, "status")))
	assert.Eventually(t, "the kubelet offers it, or no longer does", func(t testing.TB) error {
		now, err := nodes.Get(context.WithoutCancel(t.Context()), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, ok := now.Status.Allocatable[kvm.DefaultResource]
		return assert.ErrorUnless(ok != (change == `"remove"`), "allocatable is %v", now.Status.Allocatable)
	})
}
