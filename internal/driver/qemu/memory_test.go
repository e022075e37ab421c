// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/proc"
)

// memoryGroups are where control groups with memory limits are, in versions 1 and 2, and the
// file of the limit.
var memoryGroups = map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}

// limitMemory moves a process to a new control group, and limits what it may use in addition
// to what it uses now. It reports whether such a group can be made here.
func limitMemory(t *testing.T, pid int, bytes int) bool {
	t.Helper()
	for top, limit := range memoryGroups {
		group := filepath.Join(top, "drover-test-"+strconv.Itoa(pid))
		if os.Mkdir(group, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { assert.NoError(t, os.Remove(group)) })
		// A folder that is no control group has no such file, and must not get one.
		if f, err := os.OpenFile(filepath.Join(group, limit), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(strconv.Itoa(bytes))
			assert.NoError(t, errors.Join(err, f.Close(), os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)))
			return true
		}
	}
	return false
}

// runOutOfMemory has the kernel end a QEMU because memory runs out, or ends it itself where no limit can
// be set. The end is reported as that of a killed process, and the server has one process before and
// after its next start.
func (g *linuxGuest) runOutOfMemory(t *testing.T) {
	t.Helper()
	if pid := g.d.InstanceOf(g.spec.UID).PID(); limitMemory(t, pid, 32<<20) {
		if _, err := g.tryAsk(t, "/eat?mib=120"); err == nil {
			t.Error("the guest has got more memory than there is")
		}
	} else {
		t.Logf("no control group that limits memory can be made here: one of %v must be writable", memoryGroups)
		assert.NoError(t, proc.Kill(t.Context(), pid, func(int) bool { return true }))
	}
	if end := waitExit(t, g.d, g.spec.UID); end.Reason != instance.ReasonKilled || end.Code != instance.CodeKilled {
		t.Errorf("it ended with %+v", end)
	}
	again := reach(t, g.d, g.spec, driver.StateRunning)
	if again.Run == g.server.Run || again.ID != g.server.ID {
		t.Errorf("started again it is %+v", again)
	}
	if processes := machines(g.d, []types.UID{g.spec.UID}); len(processes[g.spec.UID]) != 1 {
		t.Errorf("it has the processes %v", processes)
	}
}
