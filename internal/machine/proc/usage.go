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

// Usage is what a process has used.
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
	return parseStat(stat)
}

// parseStat reads /proc/<pid>/stat, whose second field may have blanks in it.
func parseStat(stat []byte) (Usage, error) {
	const userTime, systemTime, resident = 11, 12, 21 // after the second field
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= resident {
		return Usage{}, fmt.Errorf("it has %d fields", len(fields))
	}
	var values [3]int64
	for i, at := range []int{userTime, systemTime, resident} {
		n, err := strconv.ParseInt(string(fields[at]), 10, 64)
		if err != nil {
			return Usage{}, err
		}
		values[i] = n
	}
	return Usage{
		CPU:         time.Duration(values[0]+values[1]) * tick,
		MemoryBytes: values[2] * int64(os.Getpagesize()),
	}, nil
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
