// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"testing"

	"github.com/go-logr/logr"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestHiddenProcess checks that a QEMU which frees its run lock and leaves its directory, as
// one may that its guest broke out of, is killed before the machine is started again.
func TestHiddenProcess(t *testing.T) {
	t.Parallel()
	framework.RequireRoot(t, "start machines as other users")
	hides := script(t, "exec 3>&-; cd /; exec sleep 600")
	users, err := launch.NewUsers(launch.DefaultUser, launch.DefaultUserIDs)
	assert.NoError(t, err)
	m := Machine{Path: t.TempDir(), UUID: "0c6f2f4a-0000-4000-8000-000000000001", Staging: folder(t.TempDir())}
	lock, err := m.ClaimRun()
	assert.NoError(t, err)
	config := launch.Config{Version: launch.Version, UUID: m.UUID, ID: "x", Type: "q35", Accel: AccelTCG, CPUs: 1, MemoryBytes: 16 << 20}
	program := &Program{Name: hides, Users: users, Log: logr.Discard()}
	ended, err := m.startProcess(t.Context(), program, config, &launch.Files{}, lock)
	assert.NoError(t, err)
	assert.NoError(t, lock.Close())
	started, err := m.findStarted()
	assert.NoError(t, err)
	if started == nil || m.PID() != started.PID {
		t.Fatalf("it was not found: %+v", started)
	}
	assert.Eventually(t, "it hides", func(testing.TB) error {
		on, err := m.IsRunning() // a process that another test forks may have the lock for a moment
		if on || proc.HasOption(started.PID, "-uuid", m.UUID) {
			err = errors.Join(err, errors.New("it has its run lock or its command line"))
		}
		return err
	})
	other := m
	other.UUID = "0c6f2f4a-0000-4000-8000-000000000002"
	assert.NoError(t, other.KillStrays(t.Context(), func(pid int) func() {
		t.Errorf("a copy of the folder kills process %d", pid)
		return func() {}
	}))
	found := 0
	assert.NoError(t, m.KillStrays(t.Context(), func(int) func() { found++; return func() {} }))
	if how := <-ended; found != 1 || how != "signal: killed" {
		t.Errorf("%d were found, and it ended by %s", found, how)
	}
}
