// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"
	"time"

	"cloudnative.tw/drover/internal/controller/policy/policytest"
)

// TestRunTime checks that the length of a run is measured by this process's clock
// if it observed the run.
func TestRunTime(t *testing.T) {
	observed, crashing := policytest.ShortRun(1, 3, 0)
	observed.Server.StartedAt = observed.Server.Exit.At.Add(-time.Hour) // by the engine's clock
	in := Input{VM: policytest.ReportedVM().Status(crashing).Obj(), Observed: observed, Since: Instants{Exit: policytest.T0}}
	if got := runTime(in); got != time.Hour {
		t.Errorf("a run that was not observed: %s", got)
	}
	in.Since = Instants{Run: policytest.T0.Add(time.Second), Exit: policytest.T0.Add(3 * time.Second)}
	if got := runTime(in); got != 2*time.Second {
		t.Errorf("a run that was observed: %s", got)
	}
}
