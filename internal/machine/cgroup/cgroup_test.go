// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestParseFolder(t *testing.T) {
	t.Parallel()
	const (
		v1 = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n" +
			"33 31 0:30 / /sys/fs/cgroup/cpuset rw shared:9 - cgroup cgroup rw,cpuset\n" +
			"32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
		v2     = "41 31 0:38 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid = v1 + "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		inside = "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
	)
	for name, c := range map[string]struct {
		membership, mounts, path string
		unified                  bool
	}{
		"version 1":           {"3:cpuset:/\n2:cpu,cpuacct:/system.slice/d.service\n", v1, "/sys/fs/cgroup/cpu,cpuacct/system.slice/d.service", false},
		"version 2":           {"0::/system.slice/d.service\n", v2, "/sys/fs/cgroup/system.slice/d.service", true},
		"both":                {"2:cpu,cpuacct:/\n1:name=systemd:/x\n0::/x\n", hybrid, "/sys/fs/cgroup/cpu,cpuacct", false},
		"in a container":      {"1:cpu:/docker/abc/x\n", inside, "/sys/fs/cgroup/cpu/x", false},
		"of another mount":    {"1:cpu:/docker/other\n", inside, "", false},
		"colons in the name":  {"0::/a:b\n", v2, "/sys/fs/cgroup/a:b", true},
		"nothing is mounted":  {"0::/\n", "", "", true},
		"nothing can be read": {"", v1, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := parseFolder(c.membership, c.mounts, "cpu")
			assert.True(t, g.Path == c.path && g.Unified == c.unified && (err == nil) == (c.path != "") && strings.HasPrefix(g.Path, g.top), "got %+v, %v", g, err)
		})
	}
}

// TestUnifiedLimit checks what is written for version 2, with files in place of the
// kernel's.
func TestUnifiedLimit(t *testing.T) {
	t.Parallel()
	g := Folder{Path: t.TempDir(), Unified: true}
	group := g.GroupPath("some")
	assert.NoError(t, os.Mkdir(group, 0o700))
	files := map[string]string{
		filepath.Join(g.Path, "cgroup.subtree_control"): "+cpu +memory",
		filepath.Join(group, "cpu.max"):                 "150000 100000",
		filepath.Join(group, "cpu.weight"):              "150",
		filepath.Join(group, "cgroup.procs"):            "42",
	}
	for path := range files {
		assert.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	assert.NoError(t, os.WriteFile(filepath.Join(g.Path, "cgroup.controllers"), []byte("cpu io memory\n"), 0o600))
	assert.True(t, g.Add(group, 1500, func() int { return 0 }) != nil, "a QEMU that has ended is limited")
	wantFile(t, filepath.Join(group, "cgroup.procs"), "") // 0 would be the writing process
	assert.NoError(t, g.Add(group, 1500, func() int { return 42 }))
	for path, want := range files {
		got, err := os.ReadFile(path)
		assert.True(t, err == nil && string(got) == want, "%s has %q, %v; want %q", path, got, err, want)
	}
}

// TestLacksSettings checks that settings which were changed, or whose controller was turned off, are missed.
func TestLacksSettings(t *testing.T) {
	t.Parallel()
	has := map[string]string{"cpu.max": "50000 100000", "cpu.weight": "50"}
	for name, c := range map[string]struct {
		unified bool
		files   map[string]string
		lacks   bool
	}{
		"as made":           {true, has, false},
		"the defaults":      {true, map[string]string{"cpu.max": "max 100000", "cpu.weight": "100"}, true},
		"another weight":    {true, map[string]string{"cpu.max": "50000 100000", "cpu.weight": "100"}, true},
		"no controller":     {true, map[string]string{"cgroup.procs": "42"}, true},
		"version 1":         {false, map[string]string{"cpu.shares": "512", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}, false},
		"version 1, no end": {false, map[string]string{"cpu.shares": "512", "cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "-1"}, true},
		"no group":          {true, nil, false},
	} {
		g := Folder{Path: t.TempDir(), Unified: c.unified}
		if c.files != nil {
			writeGroup(t, g.GroupPath("some"), c.files)
		}
		assert.Equal(t, name+" lacks settings", g.LacksSettings(g.GroupPath("some"), 500), c.lacks)
	}
}

// writeGroup writes the files of a control group.
func writeGroup(t *testing.T, path string, files map[string]string) {
	t.Helper()
	assert.NoError(t, os.MkdirAll(path, 0o700))
	for name, text := range files {
		assert.NoError(t, os.WriteFile(filepath.Join(path, name), []byte(text+"\n"), 0o600))
	}
}

// TestLeastMemory checks that, of all groups from Drover's group up, the one with the
// least memory left counts, and that memory which caches files counts as free.
func TestLeastMemory(t *testing.T) {
	t.Parallel()
	v2 := func(limit, high, current, inactive, active string) map[string]string {
		return map[string]string{"memory.max": limit, "memory.high": high, "memory.current": current, "memory.stat": "anon 5\ninactive_file " + inactive + "\nactive_file " + active}
	}
	v1 := func(limit, usage, inactive string) map[string]string {
		return map[string]string{"memory.limit_in_bytes": limit, "memory.usage_in_bytes": usage, "memory.stat": "inactive_file 999\ntotal_inactive_file " + inactive}
	}
	none := v1("9223372036854771712", "70", "0")
	for name, c := range map[string]struct {
		unified       bool
		top, mid, own map[string]string
		group         string
		limit, free   int64
	}{
		"own":         {true, v2("max", "max", "500", "0", "0"), v2("1000", "max", "300", "0", "0"), v2("200", "max", "100", "20", "10"), "mid/own", 200, 130},
		"an ancestor": {true, v2("max", "max", "500", "0", "0"), v2("1000", "max", "950", "10", "0"), v2("200", "max", "100", "0", "0"), "mid", 1000, 60},
		"the topmost": {true, v2("100", "max", "90", "0", "0"), v2("max", "max", "1", "0", "0"), v2("max", "max", "1", "0", "0"), "", 100, 10},
		"high":        {true, nil, nil, v2("1000", "500", "100", "0", "0"), "mid/own", 500, 400},
		"none":        {true, nil, v2("max", "max", "1", "0", "0"), v2("max", "max", "1", "0", "0"), "none", 0, 0},
		"version 1":   {false, none, v1("1000", "900", "50"), none, "mid", 1000, 150},
		"1 and none":  {false, none, none, none, "none", 0, 0},
		"overdrawn":   {false, none, none, v1("100", "120", "0"), "mid/own", 100, -20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			own := filepath.Join(top, "mid", "own")
			writeGroup(t, top, c.top)
			writeGroup(t, filepath.Dir(own), c.mid)
			writeGroup(t, own, c.own)
			least, err := leastMemory(own, top, c.unified)
			if c.group == "none" {
				assert.True(t, err != nil, "got %+v", least)
				return
			}
			assert.NoError(t, err)
			assert.Equal(t, "the least memory is", least, Memory{filepath.Join(top, c.group), c.limit, c.free})
		})
	}
}

// TestRealGroup checks that a process finds a limit that the kernel enforces above it.
func TestRealGroup(t *testing.T) {
	t.Parallel()
	g, err := findGroup(os.Getpid(), "memory")
	assert.NoError(t, err)
	path := filepath.Join(g.Path, "drover-test-memory")
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Skip("control groups cannot be made here: ", err)
	}
	defer func() { _ = os.Remove(path) }()
	name := "memory.limit_in_bytes"
	if g.Unified {
		name = "memory.max"
	}
	if err := writeFile(path, name, "268435456"); err != nil {
		t.Skip("memory cannot be limited here: ", err)
	}
	least, err := leastMemory(path, g.top, g.Unified)
	assert.NoError(t, err)
	assert.Equal(t, "the least memory is", least, Memory{path, 268435456, 268435456})
}

func wantFile(t *testing.T, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	assert.True(t, strings.TrimSpace(string(got)) == want && err == nil, "%s has %q, %v; want %q", path, got, err, want)
}

// TestCheck checks what keeps groups from being made, with files in place of the kernel's.
func TestCheck(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unified bool
		files   map[string]string
		says    string
	}{
		"version 1":               {false, nil, ""},
		"version 2, delegated":    {true, map[string]string{"cgroup.controllers": "cpu memory", "cgroup.subtree_control": "cpu", "cgroup.type": "domain"}, ""},
		"not yet distributed":     {true, map[string]string{"cgroup.controllers": "cpu", "cgroup.subtree_control": "", "cgroup.type": "domain", "cgroup.procs": ""}, ""},
		"the root group":          {true, map[string]string{"cgroup.controllers": "cpu", "cgroup.subtree_control": "", "cgroup.procs": "1"}, ""},
		"without the controller":  {true, map[string]string{"cgroup.controllers": "memory", "cgroup.subtree_control": ""}, "cpu controller"},
		"beside processes":        {true, map[string]string{"cgroup.controllers": "cpu", "cgroup.subtree_control": "", "cgroup.type": "domain", "cgroup.procs": "7\n8"}, "contains processes"},
		"no control group at all": {true, nil, "cgroup.controllers"},
	} {
		g := Folder{Path: t.TempDir(), Unified: c.unified}
		writeGroup(t, g.Path, c.files)
		assert.ErrorSays(t, name, g.Check(), c.says)
	}
	missing := Folder{Path: filepath.Join(t.TempDir(), "none")}
	assert.ErrorIs(t, "Check of a group that is gone", missing.Check(), fs.ErrNotExist)
}

// TestCheckPromises checks that where Check finds nothing, groups can be made.
func TestCheckPromises(t *testing.T) {
	t.Parallel()
	g, err := Find()
	assert.NoError(t, err)
	if err := g.Check(); err != nil {
		t.Skip("control groups cannot be made here: ", err)
	}
	group := g.GroupPath("check")
	defer func() { _ = os.Remove(group) }()
	err = g.Add(group, 100, func() int { return 0 })
	assert.True(t, err != nil && err.Error() == "the QEMU process has ended before it was put into its control group", "Check finds nothing, and a group cannot be made: %v", err)
}
