// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/test/assert"
)

// TestFraction checks that a busy guest is limited to its fraction of a CPU, and that the
// group is removed with the run.
func TestFraction(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	g := writable(t)
	spec := e.spec()
	spec.CPUMilli = 300
	s := reach(t, d, spec, driver.StateRunning)
	group := g.GroupPath(string(spec.UID))
	if s.Note != "" {
		t.Errorf("it notes %q", s.Note)
	}
	if g.Unified {
		wantFile(t, filepath.Join(group, "cpu.max"), "30000 100000")
	} else {
		wantFile(t, filepath.Join(group, "cpu.cfs_quota_us"), "30000")
	}
	wantFile(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(d.InstanceOf(spec.UID).PID()))
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
	assert.NoError(t, d.InstanceOf(spec.UID).Kill(t.Context()))
	reach(t, d, spec, driver.StateRunning)
	assert.NoError(t, os.RemoveAll(d.InstanceOf(spec.UID).Path))
	if _, err := os.Stat(group); err != nil {
		t.Errorf("the run has no group: %v", err)
	}
	gone(t, d, spec)
	isGone(t, group)

	whole := e.spec()
	reach(t, d, whole, driver.StateRunning)
	isGone(t, g.GroupPath(string(whole.UID)))
}

// writable returns where groups can be made, and skips the test if that is nowhere.
func writable(t *testing.T) cgroup.Folder {
	t.Helper()
	g, err := cgroup.Find()
	if err == nil {
		err = g.LimitCPU(g.GroupPath("probe-of-tests"), 1000, func() int { return 0 })
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
	if strings.TrimSpace(string(got)) != want || err != nil {
		t.Errorf("%s has %q, %v; want %q", path, got, err, want)
	}
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
			d.FindGroups = find
			spec := e.spec()
			spec.CPUMilli = 500
			const want = "resource.cpu: 500m is rounded up to 1000m"
			if s := reach(t, d, spec, driver.StateRunning); !strings.HasPrefix(s.Note, want) {
				t.Errorf("it notes %q", s.Note)
			}
			listed, err := e.open(t).List(t.Context(), spec.UID)
			if err != nil || len(listed) != 1 || !strings.HasPrefix(listed[0].Note, want) {
				t.Errorf("another controller sees %+v, %v", listed, err)
			}
		})
	}
}
