// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
)

// held is the prefix of faults that halt a process at a point while the test disturbs the
// world. released is the suffix of the file that lets the process continue. Both are copied from
// internal/crashpoint, which has them only in builds with the tag faults.
const held, released = "held, ", ".released"

// DisturbCalls returns faults that halt a process before each request and call that changes
// something. During the halt, one of the disturbances occurs.
func DisturbCalls(all ...outside.Disturbance) Faults {
	return disturbPoints(all, func(point string) bool { return isRequest(point) || calls.MatchString(point) })
}

// DisturbCallsAndWrites is DisturbCalls with faults before each write of a file, too.
func DisturbCallsAndWrites(all ...outside.Disturbance) Faults {
	return disturbPoints(all, func(point string) bool { return isRequest(point) || !isOfAPI(point) })
}

// disturbPoints returns the faults of wanted points that change something. Servers are not removed during a command to
// QEMU or a call to its supervisor, because the driver holds the server's lock then.
func disturbPoints(all []outside.Disturbance, isWanted func(point string) bool) Faults {
	var faults []string
	for _, d := range all {
		faults = append(faults, held+string(d))
	}
	return func(point string) []string {
		switch {
		case !isMutation(point) || !isWanted(point):
			return nil
		case strings.HasPrefix(point, qmp) || strings.HasPrefix(point, toSupervisor):
			return slices.DeleteFunc(slices.Clone(faults), func(f string) bool { return f == held+string(outside.Removed) })
		}
		return faults
	}
}

// disturbance returns the disturbance of a case, or "".
func (c Case) disturbance() outside.Disturbance {
	for _, p := range c.crashes {
		if _, d, ok := strings.Cut(string(p), "/"+held); ok {
			return outside.Disturbance(d)
		}
	}
	return ""
}

// startDisturbance waits in the background until the first process halts at its point, disturbs
// the world and lets the process continue. The caller must call finish, which waits for the end.
func (s *crashRun) startDisturbance(ctx context.Context, d outside.Disturbance) (finish func() error) {
	if d == "" {
		return func() error { return nil }
	}
	workload, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.disturb(ctx, workload.Done(), d) }()
	return func() error {
		cancel()
		return <-done
	}
}

func (s *crashRun) disturb(ctx context.Context, over <-chan struct{}, d outside.Disturbance) error {
	for s.countFaults() == 0 {
		select {
		case <-over:
			return nil
		case <-time.After(2 * time.Millisecond):
		}
	}
	release := func() error { return os.WriteFile(s.LearnFile(0)+released, nil, 0o600) }
	if d == outside.Superseded {
		s.disturbance = d
		return s.replicas.Supersede(func() error {
			err := s.awaitCalm(1)
			if _, faults, _, _ := readPoints(s.LearnFile(0)); len(faults) > 0 && calls.MatchString(faults[0]) {
				s.Isolate(0) // otherwise the process may learn before its call that it does not lead
			}
			return errors.Join(err, release())
		})
	}
	undo, err := outside.Disturb(ctx, s.engine, s.World, vmName, d)
	if err == nil {
		s.disturbance = d
	} else if errors.Is(err, outside.ErrNoServer) {
		undo, err = nil, nil
	}
	err = errors.Join(err, release())
	if undo == nil {
		return err
	}
	time.Sleep(d.Lasts())
	return errors.Join(err, undo())
}

// awaitCalm waits until a process does nothing for a while. By then it has continued the workload.
func (s *crashRun) awaitCalm(process int) error {
	known, since := 0, time.Now()
	for begin := time.Now(); time.Since(begin) < calmTimeout && time.Since(since) < calmTime; time.Sleep(20 * time.Millisecond) {
		points, _, _, err := readPoints(s.LearnFile(process))
		if err != nil {
			return err
		}
		if points = slices.DeleteFunc(points, unstable.MatchString); len(points) > known {
			known, since = len(points), time.Now()
		}
	}
	return nil
}

// calmTime is how long a leader must do nothing to count as done, and calmTimeout bounds the wait
// for that.
const calmTime, calmTimeout = 2 * time.Second, 15 * time.Second

// differences compares a state with the state of a run without faults. It returns the differences that
// the disturbance does not explain.
func (s *crashRun) differences(got, want lab.State) []string {
	got = s.work.ignoreChance(got, want)
	if s.disturbance == "" {
		return got.Differences(want)
	}
	all := s.disturbance.Differences(got, want)
	if s.engine.Name() == pod.Name {
		all = append(all, outside.MiscountedRestarts(got, want)...)
	}
	return all
}
