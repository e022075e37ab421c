// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// groupPrefix is the prefix of the names of machines' control groups.
	groupPrefix = "drover-"
	// ownGroup is where a service manager may have put the controller, so that the groups of
	// machines can be beside it: version 2 allows none below a group that has processes.
	ownGroup = "controller"
	// cpuPeriod is the period of a quota, in microseconds; minQuota is the kernel's minimum.
	cpuPeriod, minQuota = 100_000, 1_000
)

// groups is a folder of control groups, for CPU time unless stated otherwise.
type groups struct {
	path    string
	unified bool   // version 2
	top     string // where the hierarchy is mounted
}

// findGroups finds the folder in which this process may make groups.
func findGroups() (groups, error) {
	g, err := groupOf(os.Getpid(), "cpu")
	if err == nil && g.unified && filepath.Base(g.path) == ownGroup {
		g.path = filepath.Dir(g.path)
	}
	return g, err
}

// groupMemory finds the least memory that is left to the control groups of this process.
func groupMemory() (group string, free int64, err error) {
	g, err := groupOf(os.Getpid(), "memory")
	if err != nil {
		return "", 0, err
	}
	return limitedMemory(g.path, g.top, g.unified)
}

// groupOf finds the group by which a controller limits a process.
func groupOf(pid int, controller string) (groups, error) {
	membership, err := os.ReadFile(procPath(pid, "cgroup"))
	if err != nil {
		return groups{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return groups{}, err
	}
	return parseGroup(string(membership), string(mounts), controller)
}

// parseGroup reads /proc/<pid>/cgroup, one hierarchy per line: number, controllers, path.
// Version 2 names no controllers, and both versions may be present.
func parseGroup(membership, mounts, controller string) (groups, error) {
	var path, unified string
	for line := range strings.Lines(membership) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) != 3:
		case slices.Contains(strings.Split(fields[1], ","), controller):
			path = fields[2]
		case fields[1] == "":
			unified = fields[2]
		}
	}
	if path != "" {
		folder, top, err := mountedGroup(mounts, "cgroup", controller, path)
		return groups{path: folder, top: top}, err
	}
	folder, top, err := mountedGroup(mounts, "cgroup2", "", unified)
	return groups{path: folder, top: top, unified: true}, err
}

// mountedGroup finds where a group is mounted, and the topmost visible group above it.
func mountedGroup(mounts, kind, option, path string) (folder, top string, err error) {
	const root, point = 3, 4
	for lines := bufio.NewScanner(strings.NewReader(mounts)); lines.Scan(); {
		mount, about, _ := strings.Cut(lines.Text(), " - ")
		fields, is := strings.Fields(mount), strings.Fields(about)
		if len(fields) <= point || len(is) < 3 || is[0] != kind {
			continue
		}
		if option != "" && !slices.Contains(strings.Split(is[2], ","), option) {
			continue
		}
		below, err := filepath.Rel(fields[root], path)
		if err == nil && filepath.IsLocal(below) {
			return filepath.Join(fields[point], below), fields[point], nil
		}
	}
	return "", "", errors.New("no control group is mounted")
}

func (g groups) of(uid types.UID) string { return filepath.Join(g.path, groupPrefix+string(uid)) }

// limit makes a group, sets its quota and moves a process into it. It looks for the
// process last: writing 0 for one that has ended would move the controller itself.
func (g groups) limit(group string, cpuMilli int64, find func() int) error {
	if g.unified {
		if err := enableCPU(filepath.Dir(group)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // as groups are
		return err
	}
	quota := max(cpuMilli*cpuPeriod/1000, minQuota)
	settings := [][2]string{{"cpu.cfs_period_us", strconv.Itoa(cpuPeriod)}, {"cpu.cfs_quota_us", strconv.FormatInt(quota, 10)}}
	if g.unified {
		settings = [][2]string{{"cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)}}
	}
	for _, s := range settings {
		if err := writeGroup(group, s[0], s[1]); err != nil {
			return err
		}
	}
	pid := find()
	if pid == 0 {
		return errors.New("its QEMU has ended")
	}
	return writeGroup(group, "cgroup.procs", strconv.Itoa(pid))
}

// enableCPU makes version 2 distribute CPU time among the groups in a folder.
func enableCPU(folder string) error {
	const file = "cgroup.subtree_control"
	enabled, err := os.ReadFile(filepath.Join(folder, file)) //nolint:gosec // a control group's
	if err != nil || slices.Contains(strings.Fields(string(enabled)), "cpu") {
		return err
	}
	return writeGroup(folder, file, "+cpu")
}

// writeGroup writes to a file of a group, and never creates one: a file that is not the
// kernel's has no effect.
func writeGroup(group, file, text string) error {
	f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0) //nolint:gosec // a control group's
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// removeGroup removes a group whose last process has ended or is about to.
func removeGroup(ctx context.Context, group string) error {
	ctx, cancel := context.WithTimeout(ctx, leavesWithin)
	defer cancel()
	for {
		// Not RemoveAll: the kernel's files go with the group.
		err := os.Remove(group)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !pause(ctx, lookEvery) {
			return err
		}
	}
}

// planGroup sets where a run's control group will be, if its CPUs are not whole.
func (d *Driver) planGroup(s *server, cpuMilli int64) {
	s.CPUGroup, s.CPUNote = "", ""
	if cpuMilli%1000 == 0 {
		return
	}
	g, err := d.groups()
	if err != nil {
		d.noteWhole(s, cpuMilli, err)
		return
	}
	s.CPUGroup = g.of(s.UID)
}

// limitCPU limits a QEMU to its fraction of a CPU. Where that is not possible the QEMU
// keeps the whole CPU, and the server's note says so.
func (d *Driver) limitCPU(ctx context.Context, s *server) {
	if s.CPUGroup == "" {
		return
	}
	g, err := d.groups()
	if err == nil {
		err = g.limit(s.CPUGroup, s.Settings.CPUMilli, func() int { return s.pid(s.UID) })
	}
	if err != nil {
		d.dropGroup(ctx, s.CPUGroup)
		s.CPUGroup = ""
		d.noteWhole(s, s.Settings.CPUMilli, err)
	}
}

func (d *Driver) noteWhole(s *server, cpuMilli int64, err error) {
	s.CPUNote = fmt.Sprintf("resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	d.Log.Info("Machine has whole CPUs: it could not be held to a fraction", "uid", s.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// dropGroup removes the control group of a run that is over. If that fails, the remaining
// group limits no process.
func (d *Driver) dropGroup(ctx context.Context, group string) {
	if group == "" || !strings.HasPrefix(filepath.Base(group), groupPrefix) {
		return
	}
	if err := removeGroup(ctx, group); err != nil {
		d.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
	}
}

// groupOfStray returns the group of a QEMU that has no record any more.
func groupOfStray(pid int, uid types.UID) string {
	g, err := groupOf(pid, "cpu")
	if err != nil || filepath.Base(g.path) != groupPrefix+string(uid) {
		return ""
	}
	return g.path
}
