// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// defaultRest is the default of Settings.Rest.
const defaultRest = 15 * time.Second

// round runs lifecycles, many at a time. It checks the rules twice: while some VirtualMachines
// exist, and when all are gone.
func (s *soak) round(ctx context.Context, count int) error {
	var all []*lifecycle
	for range count {
		s.next++
		all = append(all, newLifecycle(s.seed, s.next))
	}
	stop := s.startFaults(ctx)
	held, err := s.liveAll(ctx, all)
	err = errors.Join(err, stop())
	if err == nil {
		err = s.each(held, func(l *lifecycle) error { return l.awaitState(ctx, s) })
	}
	if err == nil {
		err = s.checkLifecycles(ctx, nil)
	}
	if err != nil {
		return s.explain(err)
	}
	stop = s.startFaults(ctx)
	err = s.each(held, func(l *lifecycle) error { return l.end(ctx, s) })
	err = errors.Join(err, stop())
	if err == nil {
		err = s.checkLifecycles(ctx, all)
	}
	if err == nil {
		err = s.rest(ctx)
	}
	s.result.Runs += count
	return s.explain(err)
}

// liveAll runs lifecycles, as many at a time as the settings say. It returns the last lifecycle of
// each worker, whose VirtualMachine still exists.
func (s *soak) liveAll(ctx context.Context, all []*lifecycle) ([]*lifecycle, error) {
	next := make(chan *lifecycle, len(all))
	for _, l := range all {
		next <- l
	}
	close(next)
	workers, held := make([]int, s.Parallel), make([]*lifecycle, s.Parallel)
	err := inParallel(workers, func(n int, _ int) error {
		for l := range next {
			if held[n] != nil {
				if err := held[n].end(ctx, s); err != nil {
					return err
				}
			}
			held[n] = l
			if err := l.live(ctx, s); err != nil {
				return err
			}
			s.log.addDone()
		}
		return nil
	})
	var remaining []*lifecycle
	for _, l := range held {
		if l != nil {
			remaining = append(remaining, l)
		}
	}
	return remaining, err
}

// each calls do for all lifecycles concurrently.
func (s *soak) each(all []*lifecycle, do func(*lifecycle) error) error {
	return inParallel(all, func(_ int, l *lifecycle) error { return do(l) })
}

func inParallel[T any](all []T, do func(n int, item T) error) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for n, item := range all {
		running.Go(func() { errs[n] = do(n, item) })
	}
	running.Wait()
	return errors.Join(errs...)
}

// checkLifecycles waits until no rule is broken, including those about the lifecycles that have ended.
func (s *soak) checkLifecycles(ctx context.Context, ended []*lifecycle) error {
	broken, err := lab.Settle(ctx, func() ([]lab.Violation, error) {
		state, broken, err := s.world.JudgeEvidence(ctx, s.replicas.evidence(s.Engine))
		for _, l := range ended {
			broken = append(broken, l.check(state.Effects[l.name], s.kills(l.name))...)
		}
		return broken, err
	})
	if err == nil && len(broken) > 0 {
		s.result.Violations, err = append(s.result.Violations, broken...), errBroken
	}
	return err
}

func (s *soak) kills(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.killed[name]
}

// rest waits until nothing more is written, which may take some time, since client-go sends an
// event again 10 s after the API server did not accept it. Then it takes a sample of each
// process and drops the history.
func (s *soak) rest(ctx context.Context) error {
	if left := s.world.Existing(); len(left) > 0 {
		return fmt.Errorf("%d VirtualMachines are left", len(left))
	}
	if err := s.world.WaitRest(ctx, cmp.Or(s.Rest, defaultRest)); err != nil {
		return err
	}
	s.world.CloseIdle()
	if err := s.log.takeSamples(ctx, s); err != nil {
		return err
	}
	if qemu, ok := s.Engine.(lab.QEMU); ok { // released servers would use memory and CPU
		if err := qemu.EndReleased(ctx, s.world); err != nil {
			return err
		}
	}
	s.replicas.Forget()
	return s.world.Forget(ctx)
}

// explain turns an error about a state that was not reached into a violation, and writes the logs.
func (s *soak) explain(err error) error {
	if v := lab.ViolationOf(err); v != nil {
		s.result.Violations, err = append(s.result.Violations, *v), errBroken
	}
	if err == nil {
		return nil
	}
	seen := s.replicas.evidence(s.Engine)
	if errors.Is(err, context.Canceled) {
		for _, text := range seen.Failures {
			s.result.Violations, err = append(s.result.Violations, lab.Violation{Rule: rules.Converges, Text: "a process ended by itself: " + text}), errBroken
		}
	}
	if dir := os.Getenv(lab.KeepEnv); dir != "" {
		text := fmt.Sprintf("%v\n%v\n%s", err, s.result.Violations, seen.Output)
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "soak-"+s.Engine.Name()+".log"), []byte(text), 0o600))
	}
	return err
}
