// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU time in /proc, the same on all architectures that Go supports.
const tick = 10 * time.Millisecond

// Usage is the resource usage of a process.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
}

// ReadUsage reads a process's CPU time and resident size. It fails for a process ID of 0.
func ReadUsage(pid int) (Usage, error) {
	if pid == 0 {
		return Usage{}, errors.New("no process")
	}
	stat, err := os.ReadFile(Path(pid, "stat"))
	if err != nil {
		return Usage{}, err
	}
	return parseUsage(stat)
}

// StartTicks returns when a process was started, in ticks since the host booted. Process ID and
// start time identify a process until the next boot.
func StartTicks(pid int) (int64, error) {
	const startTime = 19
	stat, err := os.ReadFile(Path(pid, "stat"))
	if err != nil {
		return 0, err
	}
	values, err := parseStat(stat, startTime)
	if err != nil {
		return 0, err
	}
	return values[0], nil
}

func parseUsage(stat []byte) (Usage, error) {
	const userTime, systemTime, resident = 11, 12, 21
	values, err := parseStat(stat, userTime, systemTime, resident)
	if err != nil {
		return Usage{}, err
	}
	return Usage{
		CPU:         time.Duration(values[0]+values[1]) * tick,
		MemoryBytes: values[2] * int64(os.Getpagesize()),
	}, nil
}

// parseStat returns fields of /proc/<pid>/stat. Index 0 is the third field: the second one may
// contain spaces, and ends with the last closing parenthesis.
func parseStat(stat []byte, indexes ...int) ([]int64, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	values := make([]int64, len(indexes))
	for i, index := range indexes {
		if len(fields) <= index {
			return nil, fmt.Errorf("/proc/<pid>/stat has only %d fields after the second", len(fields))
		}
		n, err := strconv.ParseInt(string(fields[index]), 10, 64)
		if err != nil {
			return nil, err
		}
		values[i] = n
	}
	return values, nil
}

// ReadStats reads a file of the kernel that has a name and a number on each line, such as
// /proc/meminfo. It converts numbers in kB to bytes.
func ReadStats(path string) (map[string]int64, error) {
	content, err := os.ReadFile(path) //nolint:gosec // a file of the kernel
	if err != nil {
		return nil, err
	}
	stats := map[string]int64{}
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		n, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		if len(fields) > 2 && fields[2] == "kB" {
			n <<= 10
		}
		stats[strings.TrimSuffix(fields[0], ":")] = n
	}
	return stats, nil
}
