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

// Usage says how much a process has used.
type Usage struct {
	CPU         time.Duration
	MemoryBytes int64
}

// ReadUsage reads a process's CPU time and resident size; 0 means no process.
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

// StartTicks returns when a process was started, in ticks since the host's start. With the
// process ID it identifies the process until the host is started again.
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

// parseStat returns some fields of /proc/<pid>/stat, by their numbers after the second field,
// which may have blanks in it.
func parseStat(stat []byte, numbers ...int) ([]int64, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	values := make([]int64, len(numbers))
	for i, at := range numbers {
		if len(fields) <= at {
			return nil, fmt.Errorf("it has %d fields", len(fields))
		}
		n, err := strconv.ParseInt(string(fields[at]), 10, 64)
		if err != nil {
			return nil, err
		}
		values[i] = n
	}
	return values, nil
}

// ReadFigures reads a file of the kernel that has one name and number per line, such as
// /proc/meminfo. Numbers in kB are returned in bytes.
func ReadFigures(path string) (map[string]int64, error) {
	content, err := os.ReadFile(path) //nolint:gosec // the kernel's
	if err != nil {
		return nil, err
	}
	figures := map[string]int64{}
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
		figures[strings.TrimSuffix(fields[0], ":")] = n
	}
	return figures, nil
}
