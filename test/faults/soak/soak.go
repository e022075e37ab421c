// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package soak runs the lifecycles of thousands of VirtualMachines, many at a time, in one
// world with two replicas, while random faults from a seed occur. All rules must be kept at the
// end of each round, and a long-running process must not need more and more resources.
//
// Start with Kind. round.go runs a round of lifecycles; lifecycle.go is the life of a
// VirtualMachine; faults.go has the faults and fleet.go the replicas; sample.go measures what
// processes need, and flat.go checks that it does not grow.
package soak

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/users"
)

var lifecyclesFlag = flag.Int("lifecycles", 0, "the number of lifecycles of a soak; 0 means the default of its size")

// defaultSeed determines the faults and the users' requests. -case sets another seed.
const defaultSeed = 1

// Settings describe a soak.
type Settings struct {
	Engine lab.Engine
	// Parallel is the number of lifecycles at a time, and Round the number of lifecycles in a
	// round.
	Parallel, Round int
	// Rest is how long nothing may be written after a round; 0 means 15 s.
	Rest time.Duration
	// Lifecycles has the number of lifecycles for each size in which the soak runs.
	Lifecycles map[lab.Size]int
}

// Kind returns the kind of fault.
func Kind(s Settings) lab.Kind {
	return lab.Kind{
		Name: "soak, " + s.Engine.Name(), Unmarked: true, Sizes: slices.Collect(maps.Keys(s.Lifecycles)),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return s.explore(ctx, l, s.Lifecycles[size], defaultSeed)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			seed, err := strconv.ParseUint(name, 10, 64)
			if err != nil {
				return lab.Result{}, fmt.Errorf("case %q: it must be a seed, a number", name)
			}
			return s.explore(ctx, l, s.Lifecycles[lab.SizeSoak], seed)
		},
	}
}

// soak is a running soak.
type soak struct {
	Settings

	seed     uint64
	world    *lab.World
	replicas *replicas
	random   *rand.Rand // of the faults
	log      samples
	next     int // number of the next lifecycle

	mu       sync.Mutex
	counts   map[string]int // faults by name
	injected int
	killed   map[string]int // QEMUs, by name of the VirtualMachine
	result   lab.Result
}

// explore runs a soak of count lifecycles.
func (set Settings) explore(ctx context.Context, l *lab.Lab, count int, seed uint64) (lab.Result, error) {
	begin := time.Now()
	count = cmp.Or(*lifecyclesFlag, count)
	s := &soak{
		Settings: set, seed: seed, random: users.NewRandom(seed, 0),
		counts: map[string]int{}, killed: map[string]int{},
	}
	var err error
	if s.world, err = l.NewWorld(ctx); err != nil {
		return s.result, err
	}
	err = s.run(ctx, count)
	err = errors.Join(err, s.Engine.CleanUp(context.WithoutCancel(ctx), s.world), s.world.Close())
	s.result.Points, s.result.Took = s.injected, time.Since(begin)
	for name, n := range s.counts {
		s.result.Notes = append(s.result.Notes, fmt.Sprintf("%s %d times", name, n))
	}
	for n := range s.result.Violations {
		s.result.Violations[n].Case = strconv.FormatUint(seed, 10)
	}
	return s.result, err
}

// endingShare is the share of the lifecycles during which faults may end processes. During the
// others processes must not end, so that they run long enough to show leaks.
const endingShare = 0.25

// run runs both phases: in the first, processes may end; in the second, they must not.
func (s *soak) run(ctx context.Context, count int) (err error) {
	if err := s.Engine.Prepare(ctx, s.world); err != nil {
		return err
	}
	ending := int(float64(count) * endingShare)
	if err = s.phase(ctx, true, ending); err == nil {
		err = s.phase(ctx, false, count-ending)
	}
	if errors.Is(err, errBroken) {
		return nil
	}
	broken, notes := checkFlat(s.log.all)
	s.result.Notes = append(s.result.Notes, notes...)
	s.result.Violations = append(s.result.Violations, broken...)
	return err
}

// errBroken ends a soak: after a broken rule, further violations would only be its consequences.
var errBroken = errors.New("a rule was broken")

// phase runs rounds with new processes.
func (s *soak) phase(ctx context.Context, mayEnd bool, count int) (err error) {
	steps, cancel := context.WithCancel(ctx)
	defer cancel()
	if s.replicas, err = startReplicas(s.world, s.Engine, mayEnd, cancel); err != nil {
		return err
	}
	defer s.replicas.end()
	if err := s.replicas.awaitStart(ctx); err != nil {
		return err
	}
	for count > 0 && err == nil {
		n := min(count, s.Round)
		count -= n
		err = s.round(steps, n)
	}
	if mayEnd {
		s.result.Notes = append(s.result.Notes, fmt.Sprintf("%d processes lost the Lease, %d ended at a start without the API", s.replicas.lost, s.replicas.excused))
	}
	return err
}
