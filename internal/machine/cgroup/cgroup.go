// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroup puts each machine into a separate control group, which may limit its CPU time, and finds
// how much memory a process may still use under its control groups. It supports both versions
// of control groups.
//
// A service manager that ends the processes of a group, such as systemd-oomd, then ends one machine instead of all.
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
	// controllerGroup is a group that a service manager may have made for the controller. The groups of
	// machines are then beside it: in version 2, a group with processes cannot contain groups with limits.
	controllerGroup = "controller"
	// cpuPeriod is the period of a quota, in microseconds. minQuota is the kernel's minimum.
	cpuPeriod, minQuota = 100_000, 1_000
	// cpuShares and cpuWeight are the default shares of a group (versions 1 and 2), and here those of one CPU.
	cpuShares, cpuWeight = 1024, 100
	minWeight, maxWeight = 1, 10_000
	minShares, maxShares = 2, 262_144
	// removeWithin is how long the last process of a group may take to end.
	removeWithin = 500 * time.Millisecond
)

// Folder is a control group, as a folder of the mounted hierarchy. Groups of machines are made in it.
type Folder struct {
	Path    string
	Unified bool   // version 2
	top     string // the mount point of the hierarchy
}

// Find returns the group in which this process may make groups that limit CPU time.
func Find() (Folder, error) { return FindOf(os.Getpid()) }

// FindOf is Find for another process.
func FindOf(pid int) (Folder, error) {
	g, err := findGroup(pid, "cpu")
	if err == nil && g.Unified && filepath.Base(g.Path) == controllerGroup {
		g.Path = filepath.Dir(g.Path)
	}
	return g, err
}

// delegated are the attributes by which systemd marks a group that it leaves to a service, and avoided the one by which
// systemd-oomd knows a group that it shall end last (systemd.resource-control(5), ManagedOOMPreference=).
var delegated, avoided = []string{"trusted.delegate", "user.delegate"}, "user.oomd_avoid"

// EnterController moves this process from a group that the service manager has delegated to it into the group
// controllerGroup below, which systemd-oomd ends after those of machines. systemd since version 254 makes the group itself, by
// DelegateSubgroup=. EnterController does nothing with version 1 of control groups, whose groups can have both
// processes and groups.
func EnterController() error {
	g, err := findGroup(os.Getpid(), "cpu")
	if err != nil || !g.Unified {
		return err
	}
	group := g.Path
	if filepath.Base(group) != controllerGroup {
		if !slices.ContainsFunc(delegated, g.hasAttribute) {
			return nil
		}
		group = filepath.Join(group, controllerGroup)
		if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the mode that groups have
			return err
		}
		if err := writeFile(group, "cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	_ = unix.Setxattr(group, avoided, []byte("1"), 0) // fails before Linux 5.7
	return nil
}

// hasAttribute reports whether an extended attribute of the group is 1.
func (g Folder) hasAttribute(name string) bool {
	value := make([]byte, 1)
	n, err := unix.Getxattr(g.Path, name, value)
	return err == nil && string(value[:n]) == "1"
}

// FindMemory returns the memory that control groups leave to this process.
func FindMemory() (Memory, error) {
	g, err := findGroup(os.Getpid(), "memory")
	if err != nil {
		return Memory{}, err
	}
	return leastMemory(g.Path, g.top, g.Unified)
}

// findGroup returns the control group of a process in the hierarchy of a controller.
func findGroup(pid int, controller string) (Folder, error) {
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

// parseFolder parses /proc/<pid>/cgroup. Each line is a hierarchy: number, controllers and path.
// The line of version 2 lacks controllers. Both versions may be present.
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

// mountedGroup returns the folder of a group, and the mount point, which is the topmost visible
// group above it.
func mountedGroup(mounts, kind, option, path string) (folder, top string, err error) {
	const root, point = 3, 4
	for lines := bufio.NewScanner(strings.NewReader(mounts)); lines.Scan(); {
		mount, fileSystem, _ := strings.Cut(lines.Text(), " - ")
		fields, fsFields := strings.Fields(mount), strings.Fields(fileSystem) // fsFields are type, source and options
		if len(fields) <= point || len(fsFields) < 3 || fsFields[0] != kind {
			continue
		}
		if option != "" && !slices.Contains(strings.Split(fsFields[2], ","), option) {
			continue
		}
		below, err := filepath.Rel(fields[root], path)
		if err == nil && filepath.IsLocal(below) {
			return filepath.Join(fields[point], below), fields[point], nil
		}
	}
	return "", "", errors.New("the control group is in no mounted hierarchy")
}

// GroupPath returns the path of a machine's group.
func (g Folder) GroupPath(uuid string) string { return filepath.Join(g.Path, prefix+uuid) }

// Check fails if this process cannot make groups that limit CPU time. It changes nothing.
func (g Folder) Check() error {
	if err := checkWritable(g.Path); err != nil || !g.Unified {
		return err
	}
	if hasCPU, err := listsCPU(g.Path, "cgroup.controllers"); err != nil || !hasCPU {
		return cmp.Or(err, fmt.Errorf("%s cannot limit CPU time: the groups above it do not delegate the cpu controller", g.Path))
	}
	if enabled, err := listsCPU(g.Path, subtreeControlFile); err != nil || enabled {
		return err
	}
	if err := checkWritable(filepath.Join(g.Path, subtreeControlFile)); err != nil {
		return err
	}
	// A group with processes cannot distribute CPU time, unless it is the root group, which lacks the file cgroup.type.
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

// Add makes a group for a process with so many thousandths of a CPU, and moves the process into it. Of busy groups, each gets
// CPU time in proportion to its CPUs. A fraction of a CPU is a limit, too. Add calls findPID last, and checks the result,
// since writing 0 would move this process.
func (g Folder) Add(group string, cpuMilli int64, findPID func() int) error {
	if g.Unified {
		if err := enableControllers(filepath.Dir(group)); err != nil {
			return err
		}
	}
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // the mode that groups have
		return err
	}
	for _, s := range g.settings(cpuMilli) {
		if err := writeFile(group, s.file, s.text); err != nil {
			return err
		}
	}
	pid := findPID()
	if pid == 0 {
		return errors.New("the QEMU process has ended before it was put into its control group")
	}
	return writeFile(group, "cgroup.procs", strconv.Itoa(pid))
}

// LacksSettings reports whether a group that Add made has other settings now, or none. When drover.service ends, it turns off
// the controllers of its group, and with them the settings of all groups in it: else systemd before version 254 could not
// start it again. A group that is gone lacks nothing.
func (g Folder) LacksSettings(group string, cpuMilli int64) bool {
	if _, err := os.Stat(group); err != nil {
		return false
	}
	return slices.ContainsFunc(g.settings(cpuMilli), func(s setting) bool {
		text, err := os.ReadFile(filepath.Join(group, s.file)) //nolint:gosec // a file of a control group
		return err != nil || strings.TrimSpace(string(text)) != s.text
	})
}

// setting is the text of a file of a group.
type setting struct{ file, text string }

// settings returns the settings of a group with so many thousandths of a CPU.
func (g Folder) settings(cpuMilli int64) []setting {
	quota := int64(-1) // none
	if cpuMilli%1000 != 0 {
		quota = max(cpuMilli*cpuPeriod/1000, minQuota)
	}
	if !g.Unified {
		shares := min(max(cpuMilli*cpuShares/1000, minShares), maxShares)
		return []setting{
			{"cpu.shares", strconv.FormatInt(shares, 10)},
			{"cpu.cfs_period_us", strconv.Itoa(cpuPeriod)},
			{"cpu.cfs_quota_us", strconv.FormatInt(quota, 10)},
		}
	}
	limit := "max"
	if quota > 0 {
		limit = strconv.FormatInt(quota, 10)
	}
	weight := min(max(cpuMilli*cpuWeight/1000, minWeight), maxWeight)
	return []setting{{"cpu.weight", strconv.FormatInt(weight, 10)}, {"cpu.max", fmt.Sprintf("%s %d", limit, cpuPeriod)}}
}

// subtreeControlFile lists the controllers that are enabled for the groups in a folder (version 2).
const subtreeControlFile = "cgroup.subtree_control"

// enableControllers enables the cpu controller for the groups in a folder, and those that count what groups use, as far as
// they are delegated.
func enableControllers(folder string) error {
	if enabled, err := listsCPU(folder, subtreeControlFile); err != nil || enabled {
		return err
	}
	available, err := listControllers(folder, "cgroup.controllers")
	if err != nil {
		return err
	}
	wanted := []string{"+cpu"} // the kernel refuses it if it is not available
	for _, name := range []string{"memory", "pids"} {
		if slices.Contains(available, name) {
			wanted = append(wanted, "+"+name)
		}
	}
	return writeFile(folder, subtreeControlFile, strings.Join(wanted, " "))
}

// listsCPU reports whether a list of controllers contains cpu.
func listsCPU(folder, file string) (bool, error) {
	listed, err := listControllers(folder, file)
	return slices.Contains(listed, "cpu"), err
}

// listControllers reads a list of controllers.
func listControllers(folder, file string) ([]string, error) {
	listed, err := os.ReadFile(filepath.Join(folder, file)) //nolint:gosec // a file of a control group
	return strings.Fields(string(listed)), err
}

// writeFile writes to an existing file of a group. It never creates a file, which would have
// no effect.
func writeFile(group, file, text string) error {
	f, err := os.OpenFile(filepath.Join(group, file), os.O_WRONLY, 0) //nolint:gosec // a file of a control group
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Remove removes the group of a machine. It waits a moment for the group's last process to end.
// It does nothing if the path is not a machine's group.
func Remove(ctx context.Context, group string) error {
	if group == "" || !strings.HasPrefix(filepath.Base(group), prefix) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	for {
		// Not RemoveAll: the kernel removes its files with the group.
		err := os.Remove(group)
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if !proc.Pause(ctx, proc.PollEvery) {
			return err
		}
	}
}

// GroupOf returns the group that Add made for a machine's process, or an empty path.
func GroupOf(pid int, uuid string) string {
	g, err := findGroup(pid, "cpu")
	if err != nil || filepath.Base(g.Path) != prefix+uuid {
		return ""
	}
	return g.Path
}
