// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/test/assert"
)

// TestMachinesShutdown checks that the command is refused while a Drover runs, which would
// restart the machines. Otherwise it ends them and names them.
func TestMachinesShutdown(t *testing.T) {
	h := newTestHost(t)
	target, pid := h.startMachine(t, "vm", h.image)
	held, err := datadir.Open(h.data)
	assert.NoError(t, err)
	if out, err := runDrover(t, "machines", "shutdown", "--data-dir", h.data); err == nil || !strings.Contains(err.Error(), "stop it first") || !isRunning(pid) {
		t.Errorf("while Drover runs it printed %q, %v", out, err)
	}
	assert.NoError(t, held.Close())
	assertOutput(t, "default/vm: ended by force, since its guest did not power off in time\n", "machines", "shutdown", "--timeout", "0s", "--data-dir", h.data)
	if isRunning(pid) {
		t.Error("the machine runs")
	}
	servers, err := h.List(t.Context(), target.UID)
	if err != nil || len(servers) != 1 || servers[0].Exit == nil || servers[0].Exit.Reason != driver.ExitHostShutdown {
		t.Errorf("it lists %+v, %v", servers, err)
	}
	assertOutput(t, "No machines run.\n", "machines", "shutdown", "--data-dir", h.data)
	if _, err := runDrover(t, "machines", "shutdown", "--data-dir", t.TempDir()); err == nil || !strings.Contains(err.Error(), "is no Drover data dir") {
		t.Errorf("of a folder that is none: %v", err)
	}
}
