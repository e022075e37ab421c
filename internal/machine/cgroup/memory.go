// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cloudnative.tw/drover/internal/machine/proc"
)

// unlimited is the smallest number that means no limit. Without a limit, version 1 of control
// groups reports a number of about 1 << 63.
const unlimited = 1 << 60

// Memory is the memory of a control group: its limit, and how much of that is free.
type Memory struct {
	Group       string
	Limit, Free int64
}

// leastMemory finds the control group with the least memory left, among the group at path and
// those above it up to top. File caches do not count as used memory, since the kernel reclaims
// them.
func leastMemory(path, top string, unified bool) (Memory, error) {
	limits, usage, cached := []string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file"}
	if !unified {
		limits, usage, cached = []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
	}
	least := Memory{Free: unlimited}
	for folder := path; ; folder = filepath.Dir(folder) {
		limit := int64(unlimited)
		for _, name := range limits {
			limit = min(limit, readFigure(filepath.Join(folder, name), unlimited))
		}
		if limit < unlimited {
			unused := limit - readFigure(filepath.Join(folder, usage), 0)
			stat, _ := proc.ReadStats(filepath.Join(folder, "memory.stat"))
			for _, name := range cached {
				unused += stat[name]
			}
			if unused < least.Free {
				least = Memory{folder, limit, unused}
			}
		}
		if folder == top || !strings.HasPrefix(folder, top) {
			break
		}
	}
	if least.Group == "" {
		return Memory{}, errors.New("no control group limits memory")
	}
	return least, nil
}

// readFigure reads a file with a number. It returns fallback if the file is missing or has
// other content, such as the word max.
func readFigure(path string, fallback int64) int64 {
	content, err := os.ReadFile(path) //nolint:gosec // a file of a control group
	if err != nil {
		return fallback
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return fallback
	}
	return n
}
