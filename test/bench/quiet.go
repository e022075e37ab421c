// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
)

// Quiet means that processes used less than that part of one CPU over a while.
const (
	quietPart   = 0.3
	quietWhile  = 300 * time.Millisecond
	quietWithin = 2 * time.Minute
)

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

// pollPeriod is how exact a measurement by Poll is.
const pollPeriod = 25 * time.Millisecond

// Poll calls check until it succeeds, and returns how long that took, or check's last error
// if it takes too long. It checks as often at the end of a long wait as at its beginning.
func Poll(within time.Duration, check func() error) (took time.Duration, err error) {
	for begin := time.Now(); ; time.Sleep(pollPeriod) {
		err = check()
		if took = time.Since(begin); err == nil || took > within {
			return took, err
		}
	}
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
		p, err := procfs.NewProc(pid)
		if err != nil {
			continue
		}
		stat, err := p.Stat()
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return sum, nil
}

// Memory is how much of a process is in memory, in bytes.
type Memory struct {
	Resident  uint64 // what ps shows as RSS
	Anonymous uint64 // that without the program's file: heap and stacks
}

// MemoryOf a process.
func MemoryOf(pid int) (Memory, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Memory{}, err
	}
	status, err := p.NewStatus()
	return Memory{Resident: status.VmRSS, Anonymous: status.RssAnon}, err
}
