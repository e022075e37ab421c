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
	"cloudnative.tw/drover/test/vmtest"
)

func TestParseGroup(t *testing.T) {
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
			g, err := parseGroup(c.membership, c.mounts, "cpu")
			if g.path != c.path || g.unified != c.unified || (err == nil) != (c.path != "") || !strings.HasPrefix(g.path, g.top) {
				t.Errorf("got %+v, %v", g, err)
			}
		})
	}
}

// TestUnifiedLimit checks what is written for version 2, with files in place of the
// kernel's.
func TestUnifiedLimit(t *testing.T) {
	t.Parallel()
	g := groups{path: t.TempDir(), unified: true}
	group := g.of("some")
	must(t, os.Mkdir(group, 0o700))
	files := map[string]string{
		filepath.Join(g.path, "cgroup.subtree_control"): "+cpu",
		filepath.Join(group, "cpu.max"):                 "150000 100000",
		filepath.Join(group, "cgroup.procs"):            "42",
	}
	for path := range files {
		must(t, os.WriteFile(path, nil, 0o600))
	}
	if err := g.limit(group, 1500, func() int { return 0 }); err == nil {
		t.Error("a QEMU that has ended is limited")
	}
	wantFile(t, filepath.Join(group, "cgroup.procs"), "") // 0 would be the writing process
	must(t, g.limit(group, 1500, func() int { return 42 }))
	for path, want := range files {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s has %q, %v; want %q", path, got, err, want)
		}
	}
}

// TestFraction checks that a busy guest is limited to its fraction of a CPU, and that the
// group is removed with the run.
func TestFraction(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	g := writable(t)
	spec := e.spec()
	spec.CPUMilli = 300
	s := reach(t, d, spec, driver.StateRunning)
	group := g.of(spec.UID)
	if s.Note != "" {
		t.Errorf("it notes %q", s.Note)
	}
	if g.unified {
		wantFile(t, filepath.Join(group, "cpu.max"), "30000 100000")
	} else {
		wantFile(t, filepath.Join(group, "cpu.cfs_quota_us"), "30000")
	}
	wantFile(t, filepath.Join(group, "cgroup.procs"), strconv.Itoa(d.home(spec.UID).pid(spec.UID)))
	e.tell(t, s, "b")
	vmtest.Eventually(t, patience, "the kernel holds it back", func() error {
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
	must(t, d.home(spec.UID).kill(t.Context(), spec.UID))
	reach(t, d, spec, driver.StateRunning)
	must(t, os.RemoveAll(d.home(spec.UID).path))
	if _, err := os.Stat(group); err != nil {
		t.Errorf("the run has no group: %v", err)
	}
	gone(t, d, spec)
	isGone(t, group)

	whole := e.spec()
	reach(t, d, whole, driver.StateRunning)
	isGone(t, g.of(whole.UID))
	gone(t, d, whole)
}

// writable returns where groups can be made, and skips the test if that is nowhere.
func writable(t *testing.T) groups {
	t.Helper()
	g, err := findGroups()
	if err == nil {
		probe := g.of("probe-of-tests")
		if err = os.Mkdir(probe, 0o755); err == nil {
			err = os.Remove(probe)
		}
	}
	if err == nil && g.unified {
		err = enableCPU(g.path)
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
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there: %v", path, err)
	}
}

// TestNoGroups checks that without a control group a machine runs on whole CPUs, and that
// every report of it says so.
func TestNoGroups(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, find := range map[string]func() (groups, error){
		"none":     func() (groups, error) { return groups{}, errors.New("nothing is mounted") },
		"readonly": func() (groups, error) { return groups{path: e.dir + "/missing"}, nil },
		"no group": func() (groups, error) { return groups{path: t.TempDir()}, nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := e.open(t)
			d.groups = find
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
			gone(t, d, spec)
		})
	}
}
