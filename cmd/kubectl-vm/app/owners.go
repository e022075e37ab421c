// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// foreignOwner returns a warning if another program applies a field of the spec, such as one
// that keeps objects as a repository has them: it may change the field back.
func foreignOwner(vm *api.VirtualMachine, field string) string {
	for _, entry := range vm.ManagedFields {
		if entry.Operation != metav1.ManagedFieldsOperationApply || entry.Manager == fieldManager || entry.Subresource != "" {
			continue
		}
		if ownsSpecField(entry.FieldsV1, field) {
			return fmt.Sprintf("spec.%s of %s is applied by %q too, which may change it back", field, vm.Name, printable.Line(entry.Manager))
		}
	}
	return ""
}

// ownsSpecField reports whether a set of fields has a field of the spec.
func ownsSpecField(set *metav1.FieldsV1, field string) bool {
	var owned struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if set == nil || json.Unmarshal(set.GetRawBytes(), &owned) != nil {
		return false
	}
	_, has := owned.Spec["f:"+field]
	return has
}
