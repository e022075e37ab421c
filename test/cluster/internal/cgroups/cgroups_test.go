// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroups

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestRemoveFrozen removes a group, in all hierarchies, whose process is frozen, as in
// a container that is paused.
func TestRemoveFrozen(t *testing.T) {
	t.Parallel()
	assert.Require(t, os.Geteuid() == 0, "control groups need root")
	group := fmt.Sprintf("/drover-test-cgroups-%d", os.Getpid())
	assert.NoError(t, Make(group+"/below"))
	t.Cleanup(func() { _ = Remove(group) })
	process := exec.CommandContext(t.Context(), "sleep", "1h")
	assert.NoError(t, process.Start())
	ended := make(chan error, 1)
	go func() { ended <- process.Wait() }()
	roots, err := hierarchies()
	assert.NoError(t, err)
	for _, root := range roots {
		freeze(t, filepath.Join(root, group, "below"), process.Process.Pid)
	}
	assert.ReportError(t, Remove(group))
	assert.True(t, <-ended != nil, "the process was not killed")
	for _, root := range roots {
		assert.ErrorIs(t, group+" is left in "+root, assert.ErrorOf(os.Stat(filepath.Join(root, group))), fs.ErrNotExist)
	}
}

// freeze moves a process into a group and freezes it, if that is in a hierarchy that can.
func freeze(t *testing.T, group string, pid int) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(group, "cgroup.controllers")); err == nil {
		// Version 2 forbids processes beside groups with controllers.
		group = filepath.Join(group, "process")
		assert.NoError(t, os.Mkdir(group, 0o755))
	}
	writeFile(t, filepath.Join(group, "cgroup.procs"), fmt.Sprint(pid))
	for file, state := range map[string]string{"freezer.state": "FROZEN", "cgroup.freeze": "1"} {
		path := filepath.Join(group, file)
		if _, err := os.Stat(path); err == nil {
			writeFile(t, path, state)
		}
	}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
}
