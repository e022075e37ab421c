// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmclient

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestWriteBeforeItsEvent checks that a write is not kept if the cache has it when the API answers,
// and that it is no other process's.
func TestWriteBeforeItsEvent(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	assert.NoError(t, api.AddToScheme(scheme))
	vm := framework.NewVM("vm").Obj()
	cached := clientfake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(vm).WithObjects(vm).Build()
	c := New(cached, cached)
	vm, err := c.Read(t.Context(), keyOf(vm))
	assert.NoError(t, err)
	before := vm.DeepCopy()
	vm.Status.LastUpdateTime = &metav1.MicroTime{Time: time.Unix(1, 0)}
	isOvertaken, err := c.UpdateStatus(t.Context(), vm)
	assert.True(t, err == nil && !isOvertaken && len(c.written) == 0 && !c.IsForeign(before, vm),
		"overtaken is %t, %d writes are kept that the cache has, %v", isOvertaken, len(c.written), err)
	other := vm.DeepCopy()
	other.Status.LastUpdateTime = &metav1.MicroTime{Time: time.Unix(2, 0)}
	assert.True(t, c.IsForeign(vm, other), "the status of another process counts as one of this process")
}
