// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
)

// memoryGroups are where control groups with memory limits are, in versions 1 and 2, and the
// file of the limit.
var memoryGroups = map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}

// limitMemory moves a process to a new control group, and limits what it may use in addition
// to what it uses now.
func limitMemory(t *testing.T, pid int, bytes int) {
	t.Helper()
	for top, limit := range memoryGroups {
		group := filepath.Join(top, "drover-test-"+strconv.Itoa(pid))
		if os.Mkdir(group, 0o700) != nil {
			continue
		}
		t.Cleanup(func() { must(t, os.Remove(group)) })
		if os.WriteFile(filepath.Join(group, limit), []byte(strconv.Itoa(bytes)), 0) == nil {
			must(t, os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
			return
		}
	}
	t.Skipf("no control group that limits memory can be made here: one of %v must be writable", memoryGroups)
}

// TestOutOfMemory checks that a QEMU which the kernel ends because memory runs out is reported
// as killed, is started again once that was reported, and has one process all the time.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	first := reach(t, d, spec, driver.StateRunning)
	report(t, port)
	limitMemory(t, d.InstanceOf(spec.UID).PID(), 32<<20)
	if _, err := get(t, port, "/eat?mib=120"); err == nil {
		t.Fatal("the guest has got more memory than there is")
	}
	if end := waitExit(t, d, spec.UID); end.Reason != instance.ReasonKilled || end.Code != instance.CodeKilled {
		t.Errorf("it ended with %+v", end)
	}
	again := reach(t, d, spec, driver.StateRunning)
	if r := report(t, port); r.Boots != 2 || again.Run == first.Run || again.ID != first.ID {
		t.Errorf("started again it is %+v, and the guest reports %+v", again, r)
	}
	if processes := machines(d, []types.UID{spec.UID}); len(processes[spec.UID]) != 1 {
		t.Errorf("it has the processes %v", processes)
	}
	gone(t, d, spec)
}
