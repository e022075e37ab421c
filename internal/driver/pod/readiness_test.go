// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// TestReadiness checks that what the probe of a pod asks follows the spec, and that a pod which was
// made without a probe stays without.
func TestReadiness(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	probe := func(port int32) *driver.Probe {
		return &driver.Probe{Port: port, PeriodSeconds: 3, TimeoutSeconds: 1}
	}
	s := w.newServer(t, "probed")
	s.ReadinessProbe = probe(80)
	run := s.reach(t, driver.StateRunning).Run
	for want, change := range map[string]*driver.Probe{`{"port":80,"timeoutSeconds":1}`: probe(80), `{"port":81,"timeoutSeconds":1}`: probe(81), "": nil} {
		s.ReadinessProbe = change
		got := s.reach(t, driver.StateRunning)
		p := s.pod(t)
		if p.Annotations[objects.AnnotationReadiness] != want || got.Run != run || len(got.Pending) > 0 {
			t.Errorf("with %+v the probe asks %s in run %s, and %v is pending, want %s in %s", change, p.Annotations[objects.AnnotationReadiness], got.Run, got.Pending, want, run)
		}
		if r := p.Spec.Containers[0].ReadinessProbe; r == nil || r.Exec == nil || r.PeriodSeconds != 3 {
			t.Errorf("the probe of the pod is %+v, want one by exec every 3 s", r)
		}
	}
	plain := w.newServer(t, "plain")
	plain.reach(t, driver.StateRunning)
	plain.ReadinessProbe = probe(80)
	plain.reach(t, driver.StateRunning)
	if r := plain.pod(t).Spec.Containers[0].ReadinessProbe; r != nil {
		t.Errorf("a pod that was made without a probe has %+v", r)
	}
	plain.turn(t, driver.PowerOff, driver.StateStopped)
	plain.turn(t, driver.PowerOn, driver.StateRunning)
	if r := plain.pod(t).Spec.Containers[0].ReadinessProbe; r == nil {
		t.Error("the next pod has no probe")
	}
}
