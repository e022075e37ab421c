// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroups makes and removes control groups in all hierarchies of the host, of
// version 1, version 2 or both.
package cgroups

import (
	"bufio"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"cloudnative.tw/drover/test/assert"
)

// hierarchies returns the mount points of the hierarchies.
func hierarchies() ([]string, error) {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	var found []string
	for lines := bufio.NewScanner(file); lines.Scan(); {
		// 36 35 98:0 / /sys/fs/cgroup/pids rw,relatime shared:1 - cgroup cgroup rw,pids
		before, after, _ := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(before)
		if kind, _, _ := strings.Cut(after, " "); kind == "cgroup" || kind == "cgroup2" {
			found = append(found, fields[4])
		}
	}
	if len(found) == 0 {
		return nil, errors.New("no control groups are mounted at /sys/fs/cgroup")
	}
	return found, nil
}

// Make makes a group for pods, and its parents.
func Make(group string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		dir := root
		for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
			delegate(dir)
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
			if err := inheritCPUs(parent, dir); err != nil {
				return err
			}
		}
		delegate(dir)
	}
	return nil
}

// delegate enables all controllers of dir for the groups below it, which only version 2 has. It
// ignores errors: the kubelet reports a controller that is missing.
func delegate(dir string) {
	controllers, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for controller := range strings.FieldsSeq(string(controllers)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
	}
}

// inheritCPUs copies the CPUs and memory nodes: under version 1 a new group has none.
func inheritCPUs(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && strings.TrimSpace(string(value)) != "" {
			err = os.WriteFile(filepath.Join(dir, file), value, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove kills the processes of a group and removes it with all groups below. It tries again
// after errors, because killed processes take a moment to end. It goes through all hierarchies
// each time, because a process that is frozen in one of them does not end.
func Remove(group string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	return assert.Poll(context.Background(), "control group "+group+" is removed", func() (err error) {
		for _, root := range roots {
			err = errors.Join(err, removeOnce(filepath.Join(root, group)))
		}
		return err
	})
}

func removeOnce(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && entry.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	for _, dir := range slices.Backward(dirs) {
		thaw(dir)
		killAll(dir)
		if e := os.Remove(dir); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = e
		}
	}
	return err
}

// thaw resumes frozen processes, such as the processes of a paused container: in version 1 frozen processes do
// not end.
func thaw(dir string) {
	state := filepath.Join(dir, "freezer.state")
	if _, err := os.Stat(state); err == nil {
		_ = os.WriteFile(state, []byte("THAWED"), 0o600)
	}
}

func killAll(dir string) {
	content, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(content)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}
