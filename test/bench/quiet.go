// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Quiet means that processes used less than that part of one CPU over a while.
const (
	quietPart   = 0.3
	quietWhile  = 300 * time.Millisecond
	quietWithin = 2 * time.Minute
)

// tick is the unit of times in /proc; it is the same on every Linux.
const tick = 10 * time.Millisecond

// AwaitQuiet waits until processes have only routine work left.
func AwaitQuiet(ctx context.Context, pids ...int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quietWithin, fmt.Errorf("the processes were not quiet within %s", quietWithin))
	defer cancel()
	before, err := CPUTime(pids...)
	for err == nil {
		if err = Pause(ctx, quietWhile); err != nil {
			return err
		}
		var now time.Duration
		if now, err = CPUTime(pids...); now-before < time.Duration(quietPart*float64(quietWhile)) {
			return err
		}
		before = now
	}
	return err
}

// Pause sleeps, unless ctx ends.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CPUTime returns what processes have used so far, in steps of 10 ms; ended
// processes do not count.
func CPUTime(pids ...int) (sum time.Duration, err error) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		_, fields, _ := strings.Cut(string(stat), ") ") // the name before may have blanks
		used, err := sumTicks(strings.Fields(fields), 11, 12)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		sum += used
	}
	return sum, nil
}

// Memory is how much of a process is in memory, in bytes.
type Memory struct {
	Resident  int64 // what ps shows as RSS
	Anonymous int64 // that without the program's file: heap and stacks
}

// MemoryOf a process.
func MemoryOf(pid int) (Memory, error) {
	path := fmt.Sprintf("/proc/%d/status", pid)
	var resident, anonymous int64
	_, err := fmt.Sscan(procLine(path, "VmRSS"), &resident)
	if err == nil {
		_, err = fmt.Sscan(procLine(path, "RssAnon"), &anonymous)
	}
	if err != nil {
		return Memory{}, fmt.Errorf("%s: VmRSS and RssAnon: %w", path, err)
	}
	return Memory{Resident: resident << 10, Anonymous: anonymous << 10}, nil
}

func sumTicks(fields []string, which ...int) (sum time.Duration, err error) {
	for _, n := range which {
		if n >= len(fields) {
			return 0, errors.New("it has too few fields")
		}
		value, err := strconv.ParseInt(fields[n], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(value) * tick
	}
	return sum, nil
}
