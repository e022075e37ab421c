// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestCheckClaims checks that a status that is Ready too early is found, also for a second
// VirtualMachine of the same name.
func TestCheckClaims(t *testing.T) {
	ready := func(uid types.UID, at time.Time) *api.VirtualMachine {
		vm := &api.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm-1", UID: uid}}
		vm.Status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
		return vm
	}
	created := time.Date(2026, 1, 1, 12, 0, 0, 900e6, time.UTC)
	servers := map[types.UID]time.Time{"first": created}
	for name, test := range map[string]struct {
		vm   *api.VirtualMachine
		want int
	}{
		"in the second of the creation": {ready("first", created.Truncate(time.Second)), 0},
		"before the creation":           {ready("first", created.Add(-2*time.Second)), 1},
		"of a UID without a server":     {ready("second", created.Add(time.Minute)), 1},
	} {
		got := CheckClaims([]*api.VirtualMachine{test.vm}, servers)
		assert.True(t, len(got) == test.want, "%s: the violations are %v, want %d", name, got, test.want)
	}
}
