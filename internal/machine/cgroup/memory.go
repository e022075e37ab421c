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

// unlimited is the number from which on there is no limit. Version 1 of control groups
// reports about this size then.
const unlimited = 1 << 60

// leastMemory finds the control group with the least memory left, among the one at path
// and those above it up to top. Memory that only caches files does not count as used: the
// kernel reclaims it, as it does for the host.
func leastMemory(path, top string, unified bool) (group string, free int64, err error) {
	limits, usage, cached := []string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file"}
	if !unified {
		limits, usage, cached = []string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}
	}
	group, free = "", unlimited
	for at := path; ; at = filepath.Dir(at) {
		limit := int64(unlimited)
		for _, name := range limits {
			limit = min(limit, readFigure(filepath.Join(at, name), unlimited))
		}
		if limit < unlimited {
			left := limit - readFigure(filepath.Join(at, usage), 0)
			stat, _ := proc.ReadFigures(filepath.Join(at, "memory.stat"))
			for _, name := range cached {
				left += stat[name]
			}
			if left < free {
				group, free = at, left
			}
		}
		if at == top || !strings.HasPrefix(at, top) {
			break
		}
	}
	if group == "" {
		return "", 0, errors.New("no control group limits memory")
	}
	return group, free, nil
}

// readFigure reads a number; for other content, such as the word max, it returns
// otherwise.
func readFigure(path string, otherwise int64) int64 {
	content, err := os.ReadFile(path) //nolint:gosec // a control group's
	if err != nil {
		return otherwise
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}
