// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// isBoundHere checks that a VirtualMachine is bound to the engine of the original one, with a UID of the copy.
func isBoundHere(original *api.VirtualMachine) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		want := api.Binding{Driver: "fake", EngineID: original.Status.Binding.EngineID, UID: vm.UID}
		b := vm.Status.Binding
		return assert.ErrorUnless(b != nil && *b == want && vm.Annotations[api.AnnotationBound] == fmt.Sprintf("fake/%s/%s", want.EngineID, want.UID),
			"bound to %q, status %+v, want %+v", vm.Annotations[api.AnnotationBound], b, want)
	}
}

// TestCopyFromAnotherCluster restores VirtualMachines from the backup of another cluster, as backup
// tools do: with finalizer and annotation, and the status in a second request. It checks that each
// gets a new server, and that a namespace with a restored VirtualMachine can be deleted at any time.
func TestCopyFromAnotherCluster(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	original := environment.CreateActiveVM(t, newSmallVM("vm", ns, "fake"))
	backup := original.DeepCopy()
	backup.ObjectMeta = metav1.ObjectMeta{Finalizers: original.Finalizers, Annotations: map[string]string{}}
	backup.Annotations[api.AnnotationBound] = strings.Replace(original.Annotations[api.AnnotationBound], original.Status.Binding.EngineID, "elsewhere", 1)
	backup.Status.Binding.EngineID = "elsewhere"
	restore := func(name string) *api.VirtualMachine {
		vm := backup.DeepCopy()
		vm.Namespace, vm.Name = environment.CreateNamespace(t), name
		vm, err := environment.VMsIn(vm.Namespace).Create(t.Context(), vm, metav1.CreateOptions{})
		assert.NoError(t, err)
		return vm
	}
	restoreStatus := func(vm *api.VirtualMachine) {
		err := framework.RetryOnConflict(func() error {
			now := getVM(t, vm.Namespace, vm.Name)
			now.Status = *backup.Status.DeepCopy()
			_, err := environment.VMsIn(vm.Namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
			return err
		})
		assert.NoError(t, err)
	}
	plain, full, removed := restore("plain"), restore("full"), restore("removed")
	restoreStatus(full)
	environment.MustRunKubectl(t, "", "delete", "namespace", removed.Namespace, "--timeout=60s")
	environment.CheckDeletion(t, removed)
	for _, vm := range []*api.VirtualMachine{plain, full} {
		vm = environment.WaitForVM(t, vm, framework.IsActive, isBoundHere(original))
		assert.True(t, vm.Status.Server.ID != original.Status.Server.ID && vm.Status.RestartCount == 0,
			"%s has the server or the restarts of the original: %s", vm.Name, framework.FormatStatus(vm))
		environment.CheckServers(t, vm, 1)
	}
	environment.CheckVM(t, original, framework.IsActive, isBoundHere(original))
}

// TestStatusChangedByHand checks that Drover repairs a status that someone has changed.
func TestStatusChangedByHand(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	vm := environment.CreateActiveVM(t, newSmallVM("vm", ns, "fake"))
	for _, patch := range []string{`{"status": {"phase": "Failed", "reason": "Invalid"}}`, `{"status": null}`} {
		changed, err := environment.VMsIn(ns).Patch(t.Context(), vm.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		assert.NoError(t, err)
		assert.Require(t, framework.IsActive(changed) != nil, "the patch %s changes nothing", patch)
		environment.WaitForVM(t, vm, framework.IsActive, isBoundHere(vm))
	}
	environment.CheckServers(t, vm, 1)
}
