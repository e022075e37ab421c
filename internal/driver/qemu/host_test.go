// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
)

// TestMachinesThatRanBefore checks that a machine which ran with as much memory is
// admitted to the reserve, so that a host which restarts runs what it ran.
func TestMachinesThatRanBefore(t *testing.T) {
	t.Parallel()
	var r memory.Reservations
	look := func() (memory.Room, error) {
		return memory.Room{Available: 16, Reserve: 4, Where: "on the host", Promised: map[string]int64{}}, nil
	}
	ran := &instance.Instance{Record: record.Record{StartedAt: time.Unix(1, 0), Settings: record.Settings{MemoryBytes: 20}}}
	spec := driver.ServerSpec{MemoryBytes: 20}
	assert.NoError(t, r.Check(instance.DemandOf(ran, spec, machine.AccelTCG), look))
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(&instance.Instance{}, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 20 and")
	smaller := &instance.Instance{Record: record.Record{StartedAt: time.Unix(1, 0), Settings: record.Settings{MemoryBytes: 19}}}
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(smaller, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 20 and")
	spec.Files = []driver.FileMount{{Files: []driver.File{{Path: "a", Data: driver.NewSecret("abc")}}}}
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(smaller, spec, machine.AccelTCG), look)), driver.ErrExhausted,
		fmt.Sprintf("needed 20 and %s for", kit.FormatBytes(memory.OverheadTCG+int64(len("aYWJj")))))
	spec.MemoryBytes = 21
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(ran, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 21 and")
}

// TestPromised checks that a running machine is promised what it does not use yet, and
// that one which is off is promised nothing.
func TestPromised(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.MemoryBytes = 512 << 20
	s := reach(t, d, spec, driver.StateRunning)
	off(t, d, e.spec())
	have, err := d.Host.FindRoom()
	assert.NoError(t, err)
	n := have.Promised[s.ID]
	assert.True(t, len(have.Promised) == 1 && n > 0 && n < spec.MemoryBytes+memory.OverheadTCG && have.Available > 0, "there is %+v", have)
	used := d.Host.InstanceOf(spec.UID).Supervisor().MemoryBytes()
	assert.True(t, used >= 1<<20 && used <= control.EdgeMemoryBytes, "an idle supervisor has %d bytes", used)
	// Nothing is set aside for it any more, beside what it was promised.
	err = d.Host.Memory.Check(memory.Demand{Guest: 1 << 62}, d.Host.FindRoom)
	shortage, ok := errors.AsType[*memory.ShortageError](err)
	assert.True(t, ok && shortage.Promised < spec.MemoryBytes+memory.OverheadTCG, "set aside are %+v", err)
}

// TestProcessHidden checks that a running machine whose process cannot be found is
// promised all its memory, and that an attempt to kill it reports the cause.
func TestProcessHidden(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := off(t, d, spec)
	h := d.Host.InstanceOf(spec.UID)
	held, err := h.Machine.ClaimRun()
	assert.NoError(t, err)
	promised, err := d.Host.PromisedMemory()
	assert.NoError(t, err)
	assert.True(t, len(promised) == 1 && promised[s.ID] == spec.MemoryBytes+memory.OverheadTCG, "promised are %v", promised)
	soon, cancel := context.WithTimeout(t.Context(), proc.PollEvery)
	defer cancel()
	wantError(t, h.Machine.Kill(soon), context.DeadlineExceeded, string(spec.UID), "its process cannot be found", "as another user", "QEMU still runs")
	assert.NoError(t, held.Close())
	assert.NoError(t, h.Machine.Kill(t.Context()))
}

func TestParseReserve(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 512 << 20, "0": 0, "2Gi": 2 << 30, "1G": 1e9} {
		reserve, err := parseReserve(text)
		assert.NoError(t, err)
		got := reserve(4 << 30)
		assert.True(t, got == want, "%q keeps %d of 4 GiB, want %d", text, got, want)
	}
	reserve, err := parseReserve("")
	assert.NoError(t, err)
	got := reserve(100 << 30)
	assert.True(t, got == 5<<30, "%d are kept of 100 GiB, want 5 %%", got)
	for _, text := range []string{"-1", "5%", "much"} {
		assert.ErrorSays(t, text, assert.ErrorOf(New(Options{ClusterID: "c", Dir: t.TempDir(), ReserveMemory: text})), fmt.Sprintf("--qemu-reserve-memory is %q", text))
	}
}

// TestReserveIsKept checks that a machine is not started if it fits only without the
// reserve or without its overhead.
func TestReserveIsKept(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	figures, err := proc.ReadStats("/proc/meminfo")
	assert.NoError(t, err)
	o.ReserveMemory = fmt.Sprint(figures["MemTotal"])
	d := openWith(t, o)
	spec := e.spec()
	refuses(t, d, spec, driver.ErrExhausted, "spec.resource.memory: needed", kit.FormatBytes(memory.OverheadTCG)+" for QEMU, its supervisor and files", "on the host (besides "+kit.FormatMegabytes(figures["MemTotal"])+" that --qemu-reserve-memory keeps)")

	d.Host.ReservedOf = func(int64) int64 { return 0 }
	d.Host.FindGroupMemory = func() (cgroup.Memory, error) {
		return cgroup.Memory{Group: "/some/group", Free: spec.MemoryBytes + memory.OverheadTCG - 1}, nil
	}
	refuses(t, d, spec, driver.ErrExhausted, "available "+kit.FormatMegabytes(spec.MemoryBytes+memory.OverheadTCG-1)+" below the memory limit of /some/group", "below the memory limit of /some/group")
	d.Host.FindGroupMemory = func() (cgroup.Memory, error) {
		return cgroup.Memory{Group: "/some/group", Free: spec.MemoryBytes + memory.OverheadTCG}, nil
	}
	reach(t, d, spec, driver.StateRunning)
}

// TestFraction checks that a busy guest is limited to its fraction of a CPU, also after a service manager has reset that,
// that its group is removed with the run, and that whole CPUs have a group without a limit.
func TestFraction(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	g := writable(t)
	spec := e.spec()
	spec.CPUMilli = 300
	s := reach(t, d, spec, driver.StateRunning)
	group := g.GroupPath(string(spec.UID))
	assert.Equal(t, "it notes", s.Note, "")
	quota, text, reset := filepath.Join(group, "cpu.cfs_quota_us"), "30000", "-1"
	if g.Unified {
		quota, text, reset = filepath.Join(group, "cpu.max"), "30000 100000", "max"
	}
	wantFile(t, quota, text)
	wantFile(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(d.Host.InstanceOf(spec.UID).Machine.PID()))
	assert.NoError(t, os.WriteFile(quota, []byte(reset), 0o600))
	assert.True(t, listAnswering(t, d, spec.UID)[0].NeedsEnsure, "nothing asks for the limit again")
	s = reach(t, d, spec, driver.StateRunning)
	wantFile(t, quota, text)
	assert.True(t, !s.NeedsEnsure, "with its limit it is %+v", s)
	e.sendText(t, s, "b")
	assert.Eventually(t, "the kernel holds it back", func(testing.TB) error {
		stat, err := os.ReadFile(filepath.Join(group, "cpu.stat"))
		if err == nil && (!strings.Contains(string(stat), "nr_throttled") || strings.Contains(string(stat), "nr_throttled 0\n")) {
			err = textError(stat)
		}
		return err
	})

	off := spec
	off.Power, off.StopBy = driver.PowerOff, time.Now()
	reach(t, d, off, driver.StateStopped)
	isGone(t, group)
	reach(t, d, spec, driver.StateRunning)
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	reach(t, d, spec, driver.StateRunning)
	assert.NoError(t, os.RemoveAll(d.Host.InstanceOf(spec.UID).Machine.Path))
	assert.ErrorIs(t, "the run lacks a group", assert.ErrorOf(os.Stat(group)), nil)
	gone(t, d, spec)
	isGone(t, group)

	whole := e.spec()
	whole.CPUMilli = 2000
	reach(t, d, whole, driver.StateRunning)
	group = g.GroupPath(string(whole.UID))
	wantFile(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(d.Host.InstanceOf(whole.UID).Machine.PID()))
	if g.Unified {
		wantFile(t, filepath.Join(group, "cpu.max"), "max 100000")
		wantFile(t, filepath.Join(group, "cpu.weight"), "200")
	} else {
		wantFile(t, filepath.Join(group, "cpu.cfs_quota_us"), "-1")
		wantFile(t, filepath.Join(group, "cpu.shares"), "2048")
	}
}

// writable returns where groups can be made, and skips the test if that is nowhere.
func writable(t *testing.T) cgroup.Folder {
	t.Helper()
	g, err := cgroup.Find()
	if err == nil {
		err = g.Add(g.GroupPath("probe-of-tests"), 1000, func() int { return 0 })
		if err != nil && strings.Contains(err.Error(), "has ended") { // as it is to say of no process
			err = cgroup.Remove(t.Context(), g.GroupPath("probe-of-tests"))
		}
	}
	if err != nil {
		t.Skipf("control groups cannot be made here: %v", err)
	}
	return g
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	assert.True(t, strings.TrimSpace(string(got)) == want && err == nil, "%s has %q, %v; want %q", path, got, err, want)
}

func isGone(t *testing.T, path string) {
	t.Helper()
	assert.ErrorIs(t, path, assert.ErrorOf(os.Stat(path)), fs.ErrNotExist)
}

// TestNoGroups checks that without a control group a machine runs on whole CPUs, and that
// every report of it says so.
func TestNoGroups(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, find := range map[string]func() (cgroup.Folder, error){
		"none":     func() (cgroup.Folder, error) { return cgroup.Folder{}, errors.New("nothing is mounted") },
		"readonly": func() (cgroup.Folder, error) { return cgroup.Folder{Path: e.dir + "/missing"}, nil },
		"no group": func() (cgroup.Folder, error) { return cgroup.Folder{Path: t.TempDir()}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := e.open(t)
			d.Host.FindGroups = find
			spec := e.spec()
			spec.CPUMilli = 500
			const want = "spec.resource.cpu: 500m is rounded up to 1000m"
			s := reach(t, d, spec, driver.StateRunning)
			assert.True(t, strings.HasPrefix(s.Note, want), "it notes %q", s.Note)
			listed, err := e.open(t).List(t.Context(), spec.UID)
			assert.True(t, err == nil && len(listed) == 1 && strings.HasPrefix(listed[0].Note, want), "another controller sees %+v, %v", listed, err)
		})
	}
}

// TestMoreCPUsThanTheHost checks that a machine gets at most as many CPUs as the host has, and that one
// that already has more, from a host that had more, is left as it is.
func TestMoreCPUsThanTheHost(t *testing.T) {
	t.Parallel()
	_, d := newDriver(t)
	host := int64(runtime.NumCPU()) * 1000
	spec := driver.ServerSpec{CPUMilli: host + 1}
	wantError(t, (&convergence{driver: d, host: d.Host, spec: spec, inst: &instance.Instance{}}).checkNewSizes(), driver.ErrExhausted, fmt.Sprintf("spec.resource.cpu: needed %dm, and the host has %d CPUs", host+1, host/1000))
	had := &instance.Instance{}
	had.Settings.CPUMilli = spec.CPUMilli
	assert.NoError(t, (&convergence{driver: d, host: d.Host, spec: spec, inst: had}).checkNewSizes())
	spec.CPUMilli = host
	assert.NoError(t, (&convergence{driver: d, host: d.Host, spec: spec, inst: &instance.Instance{}}).checkNewSizes())
}
