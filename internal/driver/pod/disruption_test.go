// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"fmt"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestDisruption checks that the end of a server that was drained says so, as long as that end is the
// last one, and that the removal of a pod that has ended by itself is not taken for a disruption.
func TestDisruption(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.newServer(t, "drained")
	if got := s.reach(t, driver.StateRunning); got.Host != nodeName || got.Disruption != "" {
		t.Errorf("a server that runs is %+v", got)
	}
	assert.NoError(t, s.evict(t))
	s.waitStopped(t)
	if got := s.list(t); !strings.Contains(got.Disruption, "evicted, as by a drain, from node "+nodeName) {
		t.Errorf("a server that was drained is %+v", got)
	}
	s.turn(t, driver.PowerOff, driver.StateStopped) // which removes the pod
	if got := s.list(t); !strings.Contains(got.Disruption, "evicted") {
		t.Errorf("without its pod, a server that was drained is %+v", got)
	}
	s.turn(t, driver.PowerOn, driver.StateRunning)

	ended := s.pod(t)
	w.kubelet.finish(t, ended)
	s.waitStopped(t)
	assert.Eventually(t, "the next pod runs", func(t testing.TB) error {
		got, err := s.ensure(t)
		if listed := s.list(t); listed.Disruption != "" {
			t.Errorf("a server that has ended by itself is %+v", listed)
		}
		if err == nil && (got.State != driver.StateRunning || got.Run == string(ended.UID)) {
			err = fmt.Errorf("it is %s", got.State)
		}
		return err
	})
}

// waitStopped waits until the list has the end of a server.
func (s *server) waitStopped(t *testing.T) {
	t.Helper()
	assert.Eventually(t, s.Name+" has ended", func(t testing.TB) error {
		if got := s.list(t); got.State != driver.StateStopped || got.Exit == nil {
			return fmt.Errorf("it is %s", got.State)
		}
		return nil
	})
}
