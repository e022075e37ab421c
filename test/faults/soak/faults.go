// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/fleet"
	"cloudnative.tw/drover/test/framework/users"
)

const (
	// maxGap is the longest pause between two faults.
	maxGap = 2 * time.Second
	// shortFault is the longest duration of a fault by which no process may end, and longFault
	// that of a fault by which a leader may lose its Lease.
	shortFault = 500 * time.Millisecond
	longFault  = 8 * time.Second
	// maxOutage is the longest outage of an engine.
	maxOutage = 2 * time.Second
	// badAnswersTime is the longest time with bad answers, which a share badShare of requests get.
	badAnswersTime = 2 * time.Second
	badShare       = 0.3
)

// fault is one kind of fault. It ends when ctx does.
type fault struct {
	name string
	// ends is set if a process may end by it.
	ends bool
	// engines are the engines that have the fault; none means all.
	engines []string
	inject  func(ctx context.Context, s *soak, random *rand.Rand) error
}

var faults = []fault{
	{name: "leader killed", ends: true, inject: signalLeader(syscall.SIGKILL)},
	{name: "leader stopped", ends: true, inject: signalLeader(syscall.SIGTERM)},
	{name: "standby killed", ends: true, inject: killStandby},
	{name: "leader halted at length", ends: true, inject: haltLeader(longFault)},
	{name: "API away at length", ends: true, inject: cutAPI(longFault)},
	{name: "leader halted", inject: haltLeader(shortFault)},
	{name: "API away", inject: cutAPI(shortFault)},
	{name: "bad answers", inject: answerBadly},
	{name: "engine away", engines: []string{"fake", "docker"}, inject: cutEngine},
	{name: "QEMU killed", engines: []string{"qemu"}, inject: killMachine},
	{name: "supervisor killed", engines: []string{"qemu"}, inject: signalSupervisor(syscall.SIGKILL)},
	{name: "supervisor halted", engines: []string{"qemu"}, inject: signalSupervisor(syscall.SIGSTOP)},
}

// possibleFaults returns the faults of a phase.
func possibleFaults(engine string, mayEnd bool) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(f fault) bool {
		return f.ends && !mayEnd || len(f.engines) > 0 && !slices.Contains(f.engines, engine)
	})
}

// startFaults injects one fault after the other until stop is called, which waits for the
// end of the last one.
func (s *soak) startFaults(ctx context.Context) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	possible := possibleFaults(s.Engine.Name(), s.replicas.mayLose)
	var injector sync.WaitGroup
	var err error
	injector.Go(func() {
		for err == nil && ctx.Err() == nil {
			f := possible[s.random.IntN(len(possible))]
			err = f.inject(ctx, s, s.random)
			s.count(f.name)
			framework.Sleep(ctx, users.UpTo(s.random, maxGap))
		}
	})
	return func() error {
		cancel()
		injector.Wait()
		return err
	}
}

// requestTimeout bounds a request for the Lease.
const requestTimeout = 10 * time.Second

// leading returns the leader and the standby, even if the fault is ended during the call.
func (s *soak) leading(ctx context.Context) (leader, standby *fleet.Process, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	defer cancel()
	return s.replicas.leading(ctx)
}

func signalLeader(signal syscall.Signal) func(context.Context, *soak, *rand.Rand) error {
	return func(ctx context.Context, s *soak, _ *rand.Rand) error {
		leader, _, err := s.leading(ctx)
		return errors.Join(err, leader.Signal(signal))
	}
}

func killStandby(ctx context.Context, s *soak, _ *rand.Rand) error {
	_, standby, err := s.leading(ctx)
	return errors.Join(err, standby.Signal(syscall.SIGKILL))
}

func haltLeader(atMost time.Duration) func(context.Context, *soak, *rand.Rand) error {
	return func(ctx context.Context, s *soak, random *rand.Rand) error {
		leader, _, err := s.leading(ctx)
		if err != nil {
			return err
		}
		return leader.Halt(ctx, users.UpTo(random, atMost))
	}
}

func cutAPI(atMost time.Duration) func(context.Context, *soak, *rand.Rand) error {
	return func(ctx context.Context, s *soak, random *rand.Rand) error {
		s.replicas.excuseUntil(time.Now().Add(atMost))
		back := s.world.CutAPI()
		framework.Sleep(ctx, users.UpTo(random, atMost))
		back()
		s.replicas.excuseUntil(time.Now())
		return nil
	}
}

func answerBadly(ctx context.Context, s *soak, random *rand.Rand) error {
	codes := []int{http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError}
	s.replicas.excuseUntil(time.Now().Add(badAnswersTime))
	answers := users.NewRandom(random.Uint64(), 0) // separate, because requests are concurrent
	back := s.world.AnswerBadly(func(method string) int {
		if answers.Float64() >= badShare {
			return 0
		}
		code := codes[answers.IntN(len(codes))]
		if code == http.StatusConflict && method == http.MethodGet {
			return http.StatusInternalServerError
		}
		return code
	})
	framework.Sleep(ctx, users.UpTo(random, badAnswersTime))
	back()
	s.replicas.excuseUntil(time.Now())
	return nil
}

func cutEngine(ctx context.Context, s *soak, random *rand.Rand) error {
	back, err := s.Engine.Outage(ctx, s.world, false)
	framework.Sleep(ctx, users.UpTo(random, maxOutage))
	if back == nil {
		return err
	}
	return errors.Join(err, back())
}

// killMachine kills the QEMU of a random VirtualMachine, if there is one.
func killMachine(_ context.Context, s *soak, random *rand.Rand) error {
	name, pid, err := s.chooseProcess(random, processlog.Processes)
	if err != nil || pid == 0 {
		return err
	}
	s.allowStart(name)
	return signalIfThere(pid, syscall.SIGKILL)
}

// signalSupervisor kills or halts the supervisor of a random machine, which does not end the machine.
func signalSupervisor(signal syscall.Signal) func(context.Context, *soak, *rand.Rand) error {
	return func(_ context.Context, s *soak, random *rand.Rand) error {
		_, pid, err := s.chooseProcess(random, processlog.Supervisors)
		if err != nil || pid == 0 {
			return err
		}
		return signalIfThere(pid, signal)
	}
}

// chooseProcess returns a process of a random VirtualMachine, or PID 0 for none.
func (s *soak) chooseProcess(random *rand.Rand, find func(types.UID) ([]int, error)) (name string, pid int, err error) {
	existing := s.world.Existing()
	for _, name := range slices.Sorted(maps.Keys(existing)) {
		pids, err := find(existing[name].UID)
		if err != nil {
			return "", 0, err
		}
		if len(pids) > 0 && random.IntN(3) == 0 {
			return name, pids[0], nil
		}
	}
	return "", 0, nil
}

func signalIfThere(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(pid, signal); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

func (s *soak) count(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts[name]++
	s.injected++
}

// allowStart allows one more start of a server because it was killed.
func (s *soak) allowStart(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.killed[name]++
}
