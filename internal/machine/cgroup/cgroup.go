// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroup limits a machine to a fraction of a CPU with a separate control group, and
// finds the memory that control groups leave to a process. It knows both versions of
// control groups.
//
// Start with Find.
package cgroup

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// prefix is the prefix of the names of machines' control groups.
	prefix = "drover-"
	// controllerGroup is the group into which a service manager may have put the controller, so that the
	// groups of machines can be beside it: version 2 allows none below a group that has processes.
	controllerGroup = "controller"
	// cpuPeriod is the period of a quota, in microseconds; minQuota is the kernel's minimum.
	cpuPeriod, minQuota = 100_000, 1_000
	// removeWithin is how long the last process of a group may take to be gone.
	removeWithin = 500 * time.Millisecond
)

// Folder is a folder of control groups.
type Folder struct {
	Path    string
	Unified bool   // version 2
	top     string // where the hierarchy is mounted
}

// Find finds the folder in which this process may make groups that limit CPU time.
func Find() (Folder, error) { return FindOf(os.Getpid()) }

// FindOf finds the folder in which another process may make such groups.
func FindOf(pid int) (Folder, error) {
	g, err := folderOf(pid, "cpu")
	if err == nil && g.Unified && filepath.Base(g.Path) == controllerGroup {
		g.Path = filepath.Dir(g.Path)
	}
	return g, err
}

// MemoryLeft finds the least memory that is left to the control groups of this process.
func MemoryLeft() (group string, free int64, err error) {
	g, err := folderOf(os.Getpid(), "memory")
	if err != nil {
		return "", 0, err
	}
	return leastMemory(g.Path, g.top, g.Unified)
}

// folderOf finds the group by which a controller limits a process.
func folderOf(pid int, controller string) (Folder, error) {
	membership, err := os.ReadFile(proc.Path(pid, "cgroup"))
	if err != nil {
		return Folder{}, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Folder{}, err
	}
	return parseFolder(string(membership), string(mounts), controller)
}

// parseFolder reads /proc/<pid>/cgroup, one hierarchy per line: number, controllers, path.
// Version 2 names no controllers, and both versions may be present.
func parseFolder(membership, mounts, controller string) (Folder, error) {
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
		return Folder{Path: folder, top: top}, err
	}
	folder, top, err := mountedGroup(mounts, "cgroup2", "", unified)
	return Folder{Path: folder, top: top, Unified: true}, err
}

// mountedGroup finds where a group is mounted, and the topmost visible group above it.
func mountedGroup(mounts, kind, option, path string) (folder, top string, err error) {
	const root, point = 3, 4
	for lines := bufio.NewScanner(strings.NewReader(mounts)); lines.Scan(); {
		mount, about, _ := strings.Cut(lines.Text(), " - ")
		fields, options := strings.Fields(mount), strings.Fields(about)
		if len(fields) <= point || len(options) < 3 || options[0] != kind {
			continue
		}
		if option != "" && !slices.Contains(strings.Split(options[2], ","), option) {
			continue
		}
		below, err := filepath.Rel(fields[root], path)
		if err == nil && filepath.IsLocal(below) {
			return filepath.Join(fields[point], below), fields[point], nil
		}
	}
	return "", "", errors.New("no control group is mounted")
}

// GroupPath returns the path of a machine's group.
func (g Folder) GroupPath(uuid string) string { return filepath.Join(g.Path, prefix+uuid) }

// Check returns an error if the caller's user cannot make a group that limits CPU time. It
// changes nothing.
func (g Folder) Check() error {
	if err := checkWritable(g.Path); err != nil || !g.Unified {
		return err
	}
	if hasCPU, err := listsCPU(g.Path, "cgroup.controllers"); err != nil || !hasCPU {
		return cmp.Or(err, fmt.Errorf("%s may not limit CPU time: the groups above it do not pass on the controller cpu", g.Path))
	}
	if enabled, err := listsCPU(g.Path, distributedFile); err != nil || enabled {
		return err
	}
	if err := checkWritable(filepath.Join(g.Path, distributedFile)); err != nil {
		return err
	}
	// Only the root group, which lacks a type, may have processes and distribute CPU time.
	_, err := os.Stat(filepath.Join(g.Path, "cgroup.type"))
	members, err2 := os.ReadFile(filepath.Join(g.Path, "cgroup.procs"))
	if err == nil && err2 == nil && len(bytes.TrimSpace(members)) > 0 {
		return fmt.Errorf("%s contains processes, so version 2 of control groups allows no limited groups in it", g.Path)
	}
	return nil
}

func checkWritable(path string) error {
	if err := unix.Access(path, unix.W_OK); err != nil {
		return &fs.PathError{Op: "writing to", Path: path, Err: err}
	}
	return nil
}

// LimitCPU makes a group, sets its quota and moves a process into it. It looks for the
// process last: if that has ended, writing its number 0 would move the caller itself.
func (g Folder) LimitCPU(group string, cpuMilli int64, findPID func() int) error {
	if g.Unified {
		if err := enableCPU(filepath.Dir(group)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the mode that groups have
		return err
	}
	quota := max(cpuMilli*cpuPeriod/1000, minQuota)
	settings := [][2]string{{"cpu.cfs_period_us", strconv.Itoa(cpuPeriod)}, {"cpu.cfs_quota_us", strconv.FormatInt(quota, 10)}}
	if g.Unified {
		settings = [][2]string{{"cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod)}}
	}
	for _, s := range settings {
		if err := writeFile(group, s[0], s[1]); err != nil {
			return err
		}
	}
	pid := findPID()
	if pid == 0 {
		return errors.New("its QEMU has ended")
	}
	return writeFile(group, "cgroup.procs", strconv.Itoa(pid))
}

// distributedFile lists the controllers that version 2 applies to the groups in a folder.
const distributedFile = "cgroup.subtree_control"

// enableCPU makes version 2 distribute CPU time among the groups in a folder.
func enableCPU(folder string) error {
	if enabled, err := listsCPU(folder, distributedFile); err != nil || enabled {
		return err
	}
	return writeFile(folder, distributedFile, "+cpu")
}

// listsCPU reports whether a list of controllers contains cpu.
func listsCPU(folder, file string) (bool, error) {
	listed, err := os.ReadFile(filepath.Join(folder, file)) //nolint:gosec // a control group's
	return slices.Contains(strings.Fields(string(listed)), "cpu"), err
}

// writeFile writes to a file of a group, and never creates one: only the kernel's files
// have an effect.
func writeFile(group, file, text string) error {
	f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0) //nolint:gosec // a control group's
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Remove removes the group of a machine whose last process has ended or is about to. It
// does nothing for the path of any other group.
func Remove(ctx context.Context, group string) error {
	if group == "" || !strings.HasPrefix(filepath.Base(group), prefix) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for {
		// Not RemoveAll: the kernel's files go with the group.
		err := os.Remove(group)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return err
		}
	}
}

// GroupOf returns the group of a machine's process; empty if it was not given one.
func GroupOf(pid int, uuid string) string {
	g, err := folderOf(pid, "cpu")
	if err != nil || filepath.Base(g.Path) != prefix+uuid {
		return ""
	}
	return g.Path
}
