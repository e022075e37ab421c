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

// held begins the name of a fault at which a process halts at its point, while others than
// Drover do something. released is the suffix of the file that lets it go on. Both come from
// internal/crashpoint, which has them in a build with the tag faults only.
const held, released = "held, ", ".released"

// Outside returns the faults of points at which one of these is done by others than Drover:
// before each request and call that changes something.
func Outside(all ...outside.Disturbance) Faults {
	return doneBefore(all, func(point string) bool { return isRequest(point) || calls.MatchString(point) })
}

// OutsideAnywhere is Outside before each write of a file, too.
func OutsideAnywhere(all ...outside.Disturbance) Faults {
	return doneBefore(all, func(point string) bool { return isRequest(point) || !isOfAPI(point) })
}

// doneBefore returns the faults of points that are wanted and change something. During a command to QEMU or a call to
// its supervisor the driver has locked the server, so that none removes it.
func doneBefore(all []outside.Disturbance, isWanted func(point string) bool) Faults {
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

// disturbance returns what others than Drover do in a case, or nothing.
func (c Case) disturbance() outside.Disturbance {
	for _, p := range c.crashes {
		if _, d, ok := strings.Cut(string(p), "/"+held); ok {
			return outside.Disturbance(d)
		}
	}
	return ""
}

// startDisturbance waits for the first process at its point, disturbs the world there and
// lets the process go on. The caller must call finish, which waits for the end of that.
func (s *crashRun) startDisturbance(ctx context.Context, d outside.Disturbance) (finish func() error) {
	if d == "" {
		return func() error { return nil }
	}
	waiting, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.disturb(ctx, waiting.Done(), d) }()
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
		s.disturbed = d
		return s.replicas.Supersede(func() error {
			err := s.awaitCalm(1)
			if _, faults, _, _ := readPoints(s.LearnFile(0)); len(faults) > 0 && calls.MatchString(faults[0]) {
				s.Isolate(0) // else it may learn the truth before it has called
			}
			return errors.Join(err, release())
		})
	}
	undo, err := outside.Disturb(ctx, s.engine, s.World, vmName, d)
	if err == nil {
		s.disturbed = d
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

// awaitCalm waits until a process does nothing for a while, so that users have gone on.
func (s *crashRun) awaitCalm(process int) error {
	known, since := 0, time.Now()
	for begin := time.Now(); time.Since(begin) < calmWithin && time.Since(since) < calmTime; time.Sleep(20 * time.Millisecond) {
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

// calmTime is how long a leader does nothing once it has done all, and calmWithin how long that
// takes at most.
const calmTime, calmWithin = 2 * time.Second, 15 * time.Second

// differences returns how a state differs from one without faults, or after the actions of others
// than Drover.
func (s *crashRun) differences(got, want lab.State) []string {
	got = s.work.withoutChance(got, want)
	if s.disturbed == "" {
		return got.Differences(want)
	}
	all := s.disturbed.Differences(got, want)
	if s.engine.Name() == pod.Name {
		all = append(all, outside.UncountedEnds(got, want)...)
	}
	return all
}
