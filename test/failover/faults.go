// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/fleet"
	"cloudnative.tw/drover/test/framework/users"
)

// Kind of a fault.
type Kind string

// The kinds of faults.
const (
	Halt         Kind = "SIGSTOP"
	Kill         Kind = "SIGKILL"
	Term         Kind = "SIGTERM"
	Disconnect   Kind = "cut off"
	Blackhole    Kind = "blackhole"
	DelayReplies Kind = "late replies"
	DeleteLease  Kind = "Lease deleted"
	KillAPI      Kind = "API server killed"
)

const (
	// defaultWorkers is the default number of faults that are active at a time.
	defaultWorkers = 2
	// maxGap is the longest pause between two faults of a worker.
	maxGap = 1500 * time.Millisecond
	// leaderShare is the share of faults that affect the leader.
	leaderShare = 0.8
)

// maxFaultDuration is long enough for another replica to become the leader.
func (w *environment) maxFaultDuration() time.Duration { return 3 * w.lease.Lease }

// Fault is an injected fault, with its time. PID is 0 if it affected all
// processes.
type Fault struct {
	Kind     Kind
	PID      int
	From, To time.Time
}

// faultInjector injects faults into an environment.
type faultInjector struct {
	*environment
	random  *rand.Rand
	workers int

	mu      sync.Mutex
	pending []Kind
	busy    map[string]bool // replicas that a fault affects
	faults  []Fault
	api     sync.Mutex // held while the API server is down
}

// newFaultInjector returns an injector of the faults of a plan in random order.
func newFaultInjector(w *environment, plan []Kind, seed uint64) *faultInjector {
	s := &faultInjector{environment: w, random: users.NewRandom(seed, 1), workers: defaultWorkers, pending: slices.Clone(plan), busy: map[string]bool{}}
	s.random.Shuffle(len(s.pending), func(i, j int) { s.pending[i], s.pending[j] = s.pending[j], s.pending[i] })
	return s
}

// injectAll injects faults until none is left, or ctx ends.
func (s *faultInjector) injectAll(ctx context.Context) ([]Fault, error) {
	errs := make(chan error, s.workers)
	for range s.workers {
		go func() { errs <- s.injectFaults(ctx) }()
	}
	var err error
	for range s.workers {
		err = errors.Join(err, <-errs)
	}
	return s.faults, err
}

func (s *faultInjector) injectFaults(ctx context.Context) error {
	for kind, ok := s.nextKind(); ok && ctx.Err() == nil; kind, ok = s.nextKind() {
		framework.Sleep(ctx, users.UpTo(s.random, maxGap))
		fault, err := s.injectFault(ctx, kind)
		switch {
		case ctx.Err() != nil: // ignore the result of an interrupted fault
		case err != nil:
			return fmt.Errorf("%s: %w", kind, err)
		}
		s.mu.Lock()
		s.faults = append(s.faults, fault)
		s.mu.Unlock()
	}
	return nil
}

func (s *faultInjector) nextKind() (Kind, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) == 0 {
		return "", false
	}
	kind := s.pending[0]
	s.pending = s.pending[1:]
	return kind, true
}

// injectFault runs one fault to its end.
func (s *faultInjector) injectFault(ctx context.Context, kind Kind) (f Fault, err error) {
	f.Kind = kind
	switch kind {
	case DeleteLease:
		f.From = time.Now()
		err = users.RetryRequest(ctx, s.sharedLease().Delete) // as a user does, once the API server answers
	case KillAPI:
		s.api.Lock()
		defer s.api.Unlock()
		f.From = time.Now()
		err = s.killAPI(ctx)
	default:
		p := s.reserveTarget(ctx)
		if p == nil {
			return f, nil
		}
		defer s.reserve(p.Replica, false)
		f.PID, f.From = p.PID(), time.Now()
		err = s.injectInto(ctx, kind, p)
	}
	f.To = time.Now()
	return f, err
}

// reserveTarget reserves mostly the leader, otherwise any running replica. It returns nil if ctx
// ends.
func (s *faultInjector) reserveTarget(ctx context.Context) *fleet.Process {
	wanted := s.random.Float64() < leaderShare
	for begin := time.Now(); ctx.Err() == nil; framework.Sleep(ctx, pollPeriod) {
		p := s.replicas.Running()[fmt.Sprintf("replica-%d", s.random.IntN(len(s.commands)))]
		if wanted && time.Since(begin) < 2*s.lease.Lease {
			p = s.leader(ctx)
		}
		if p != nil && s.reserve(p.Replica, true) {
			return p
		}
	}
	return nil
}

// reserve reserves a replica for a fault, or releases it if busy is false, and reports whether this was a change.
func (s *faultInjector) reserve(replica string, busy bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.busy[replica]
	s.busy[replica] = busy
	return was != busy
}

// leader returns the process that holds the Lease, or nil.
func (w *environment) leader(ctx context.Context) *fleet.Process {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	p, _ := w.replicas.Leader(ctx, w.sharedLease())
	return p
}

func (w *environment) sharedLease() fleet.Lease {
	return fleet.Lease{Kube: w.KubeClient, Namespace: metav1.NamespaceDefault}
}

// injectInto applies a fault to one replica.
func (s *faultInjector) injectInto(ctx context.Context, kind Kind, p *fleet.Process) error {
	proxy := s.proxies[p.Replica]
	switch kind {
	case Halt:
		return p.Halt(ctx, users.UpTo(s.random, s.maxFaultDuration()))
	case Kill:
		return p.Signal(syscall.SIGKILL)
	case Term:
		err := p.Signal(syscall.SIGTERM)
		_ = p.Wait(ctx) // a leader and a standby end with different exit codes
		return err
	case Disconnect:
		proxy.Disconnect()
	case Blackhole:
		proxy.Blackhole()
	case DelayReplies:
		proxy.DelayReplies(s.randomDelay())
	default:
		return errors.New("the fault does not affect a single replica")
	}
	framework.Sleep(ctx, users.UpTo(s.random, s.maxFaultDuration()))
	proxy.Restore()
	return nil
}

// randomDelay returns a delay that in half of the cases is short enough for a renewal to succeed.
func (s *faultInjector) randomDelay() time.Duration {
	if s.random.Float64() < 0.5 {
		return users.UpTo(s.random, s.lease.RequestTimeout())
	}
	return s.lease.RequestTimeout() + users.UpTo(s.random, s.lease.Lease)
}

func (s *faultInjector) killAPI(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	framework.Sleep(ctx, users.UpTo(s.random, s.lease.Lease))
	return s.Start()
}
