// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"strings"
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

func TestReadList(t *testing.T) {
	const items = `[{"metadata":{"name":"a","namespace":"n","generation":3,"managedFields":[{"manager":"x"}]},"spec":{"resource":{"cpu":2,"memory":"4G"},"ports":[]},"status":{"phase":"Active"}},{"metadata":{"name":"b"}}]`
	lists := []string{
		`{"kind":"VirtualMachineList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":` + items + `}`,
		`{"items":` + items + `,"metadata":{"continue":""}}`,
	}
	for _, text := range lists {
		vms, err := readList(strings.NewReader(text))
		assert.Require(t, err == nil && len(vms) == 2, "%s: %d VMs and %v", text, len(vms), err)
		vm := vms[0]
		if vm.Name != "a" || vm.Namespace != "n" || vm.Generation != 3 || vm.Status.Phase != api.PhaseActive || SizeText(&vm, api.ResourceMemory) != "4G" {
			t.Errorf("got %+v", vm)
		}
	}
	vms, err := readList(strings.NewReader(`{"items":[]}`))
	assert.True(t, err == nil && len(vms) == 0, "an empty list is %v and %v", vms, err)
	for _, text := range []string{"", "[]", "{}", `{"items":null}`, `{"items":{}}`, lists[0][:len(lists[0])/2], lists[0][:len(lists[0])-2], "404 page not found"} {
		vms, err := readList(strings.NewReader(text))
		assert.True(t, err != nil, "%q is a list of %d", text, len(vms))
	}
}
