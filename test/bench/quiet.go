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

// Processes are quiet if they use less than quietPart of one CPU during quietPeriod.
const (
	quietPart    = 0.3
	quietPeriod  = 300 * time.Millisecond
	quietTimeout = 2 * time.Minute
)

// AwaitQuiet waits until processes have only routine work left.
func AwaitQuiet(ctx context.Context, pids ...int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, quietTimeout, fmt.Errorf("the processes were not quiet within %s", quietTimeout))
	defer cancel()
	before, err := CPUTime(pids...)
	for err == nil {
		if err = Pause(ctx, quietPeriod); err != nil {
			return err
		}
		var now time.Duration
		if now, err = CPUTime(pids...); now-before < time.Duration(quietPart*float64(quietPeriod)) {
			return err
		}
		before = now
	}
	return err
}

// pollPeriod is the time between two checks of Poll.
const pollPeriod = 25 * time.Millisecond

// Poll calls check in constant periods until it succeeds, and returns how long it took, or the last
// error of check if it took too long.
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

// CPUTime returns the CPU time of processes so far, in steps of 10 ms. Ended processes
// do not count.
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

// Memory is the memory of a process, in bytes.
type Memory struct {
	Resident  uint64 // RSS
	Anonymous uint64 // RSS without mapped files: heap and stacks
}

// MemoryOf returns the memory of a process.
func MemoryOf(pid int) (Memory, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return Memory{}, err
	}
	status, err := p.NewStatus()
	return Memory{Resident: status.VmRSS, Anonymous: status.RssAnon}, err
}
