// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
	"cloudnative.tw/drover/internal/driver"
)

// TestHasRestarted checks that a status, which has microseconds, is compared with what an
// engine reports, which has nanoseconds.
func TestHasRestarted(t *testing.T) {
	recorded := &metav1.MicroTime{Time: policytest.T0}
	for name, tc := range map[string]struct {
		recorded *metav1.MicroTime
		started  time.Time
		want     bool
	}{
		"the same":                  {recorded, policytest.T0, false},
		"the same, nanoseconds":     {recorded, policytest.T0.Add(999), false},
		"a microsecond later":       {recorded, policytest.T0.Add(1000), true},
		"nothing recorded":          {nil, policytest.T0, false},
		"never started":             {recorded, time.Time{}, false},
		"nothing recorded or known": {nil, time.Time{}, false},
	} {
		status := &api.VirtualMachineStatus{StartTime: tc.recorded}
		if got := HasRestarted(status, driver.Server{StartedAt: tc.started}); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
