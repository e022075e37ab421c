// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectlvm

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestRestartedAtOfAnyPrecision checks that each value of restartedAt restarts once, also one
// that the status cannot hold: a fraction of a second, as JavaScript writes it, and the zero
// time, which restarts nothing.
func TestRestartedAtOfAnyPrecision(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.create("vm")
	restarts, grace := int64(0), 10
	for _, value := range []string{"0001-01-01T00:00:00Z", "2026-01-31T12:00:00.123Z", "2026-01-31T12:00:00.987+02:00"} {
		if value[0] != '0' {
			restarts++
		}
		for range 3 { // the value changes once; other fields change too
			grace++
			patch := fmt.Sprintf(`{"spec":{"restartedAt":%q,"shutdownGracePeriodSeconds":%d}}`, value, grace)
			vm, err := environment.VMClient.CloudnativeV1alpha1().VirtualMachines(u.namespace).
				Patch(t.Context(), "vm", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			assert.NoError(t, err)
			u.waitFor("vm", func(now *api.VirtualMachine) error {
				if now.Status.ObservedGeneration != vm.Generation || now.Status.Reason != api.ReasonRunning {
					return fmt.Errorf("generation %d, %s", now.Status.ObservedGeneration, now.Status.Reason)
				}
				return nil
			})
		}
		u.must("start", "vm", "--wait") // which waits for restarts that are to come
		if got := u.get("vm").Status.RestartCount; got != restarts {
			t.Errorf("restarted %d times after %s, want %d", got, value, restarts)
		}
	}
}
