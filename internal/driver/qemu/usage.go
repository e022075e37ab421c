// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// perTick is the unit of CPU time in /proc, the same on all architectures that Go
// supports.
const perTick = 10 * time.Millisecond

// Usage returns what the machines' processes have used, and the memory use that their
// guests report.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, enter(ctx)
	}
	servers, err := d.look(ctx, uids)
	if err != nil {
		return nil, err
	}
	servers = slices.DeleteFunc(servers, func(s server) bool { return !s.alive() || s.Phase != phaseOn })
	samples, errs := make([]driver.Usage, len(servers)), make([]error, len(servers))
	var all errgroup.Group
	all.SetLimit(atOnce)
	for i := range servers {
		all.Go(func() error {
			samples[i], errs[i] = d.sample(ctx, &servers[i])
			return nil
		})
	}
	_ = all.Wait()
	found := samples[:0]
	for i, u := range samples {
		if errs[i] == nil { // else it has ended meanwhile
			found = append(found, u)
		}
	}
	return found, nil
}

func (d *Driver) sample(ctx context.Context, s *server) (driver.Usage, error) {
	u, err := sample(s.pid(s.UID))
	if err != nil {
		return u, err
	}
	u.UID, u.Run, u.At = s.UID, s.Run, d.Clock.Now()
	if used, told := s.guestMemory(ctx, u.At); told {
		u.MemoryBytes = used
	}
	u.MemoryBytes = min(u.MemoryBytes, s.Settings.MemoryBytes)
	return u, nil
}

// sample reads a process's CPU time and resident size.
func sample(pid int) (driver.Usage, error) {
	if pid == 0 {
		return driver.Usage{}, errors.New("no process")
	}
	stat, err := os.ReadFile(procPath(pid, "stat"))
	if err != nil {
		return driver.Usage{}, err
	}
	return parseStat(stat)
}

// parseStat reads /proc/<pid>/stat, whose second field may have blanks in it.
func parseStat(stat []byte) (driver.Usage, error) {
	const userTime, systemTime, resident = 11, 12, 21 // after the second field
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= resident {
		return driver.Usage{}, fmt.Errorf("it has %d fields", len(fields))
	}
	var values [3]int64
	for i, at := range []int{userTime, systemTime, resident} {
		n, err := strconv.ParseInt(string(fields[at]), 10, 64)
		if err != nil {
			return driver.Usage{}, err
		}
		values[i] = n
	}
	return driver.Usage{
		CPU:         time.Duration(values[0]+values[1]) * perTick,
		MemoryBytes: values[2] * int64(os.Getpagesize()),
	}, nil
}
