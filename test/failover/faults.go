// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

// Kind of a fault.
type Kind string

// The kinds.
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
	// defaultWorkers are how many faults are active at a time, unless specified.
	defaultWorkers = 2
	// maxGap is the longest pause between one fault and the next of a worker.
	maxGap = 1500 * time.Millisecond
	// leaderShare of the faults affect the leader.
	leaderShare = 0.8
)

// maxFaultDuration is long enough for another leader.
func (w *environment) maxFaultDuration() time.Duration { return 3 * w.lease.Lease }

// Fault is an injected fault, with its time. PID is 0 for one that affected all
// processes.
type Fault struct {
	Kind     Kind
	PID      int
	From, To time.Time
}

// faultInjector injects faults into an environment.
type faultInjector struct {
	*environment
	random  *users.Random
	workers int

	mu      sync.Mutex
	pending []Kind
	faults  []Fault
	api     sync.Mutex // held while the API server is down
}

// newFaultInjector returns the faults of a plan in a random order.
func newFaultInjector(w *environment, plan []Kind, seed uint64) *faultInjector {
	s := &faultInjector{environment: w, random: users.NewRandom(seed, 1), workers: defaultWorkers, pending: append([]Kind(nil), plan...)}
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
		users.Sleep(ctx, s.random.DurationUpTo(maxGap))
		fault, err := s.injectFault(ctx, kind)
		switch {
		case ctx.Err() != nil: // the result of an interrupted fault means nothing
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
		err = s.deleteLease(ctx)
	case KillAPI:
		s.api.Lock()
		defer s.api.Unlock()
		f.From = time.Now()
		err = s.killAPI(ctx)
	default:
		r, p := s.reserveTarget(ctx)
		if r == nil {
			return f, nil
		}
		defer r.release()
		f.PID, f.From = p.PID(), time.Now()
		err = s.injectInto(ctx, kind, r, p)
	}
	f.To = time.Now()
	return f, err
}

// reserveTarget reserves the leader, most of the time, or any running replica.
func (s *faultInjector) reserveTarget(ctx context.Context) (*replica, *framework.Process) {
	wanted := s.random.WithProbability(leaderShare)
	for begin := time.Now(); ctx.Err() == nil; users.Sleep(ctx, pollPeriod) {
		r := s.replicas[s.random.IntN(len(s.replicas))]
		if wanted && time.Since(begin) < 2*s.lease.Lease {
			if r = s.leadingReplica(ctx); r == nil {
				continue
			}
		}
		if p, ok := r.reserve(); ok {
			return r, p
		}
	}
	return nil, nil
}

// leadingReplica returns the replica whose process holds the Lease, or nil. The Lease may still
// name the process before it, which has ended.
func (w *environment) leadingReplica(ctx context.Context) *replica {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := w.KubeClient.CoordinationV1().Leases(metav1.NamespaceDefault).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil || l.Spec.AcquireTime == nil {
		return nil
	}
	name, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	for _, r := range w.replicas {
		if r.name == name && r.hasRunSince(l.Spec.AcquireTime.Time) {
			return r
		}
	}
	return nil
}

// injectInto applies a fault to one replica.
func (s *faultInjector) injectInto(ctx context.Context, kind Kind, r *replica, p *framework.Process) error {
	switch kind {
	case Halt:
		err := sendSignal(p, syscall.SIGSTOP)
		users.Sleep(ctx, s.random.DurationUpTo(s.maxFaultDuration()))
		return errors.Join(err, sendSignal(p, syscall.SIGCONT))
	case Kill:
		return sendSignal(p, syscall.SIGKILL)
	case Term:
		return terminateProcess(ctx, p)
	case Disconnect:
		r.proxy.Disconnect()
	case Blackhole:
		r.proxy.Blackhole()
	case DelayReplies:
		r.proxy.DelayReplies(s.randomDelay())
	default:
		return errors.New("it affects no single replica")
	}
	users.Sleep(ctx, s.random.DurationUpTo(s.maxFaultDuration()))
	r.proxy.Restore()
	return nil
}

// randomDelay returns, half of the time, a delay that a renewal may survive.
func (s *faultInjector) randomDelay() time.Duration {
	if s.random.WithProbability(0.5) {
		return s.random.DurationUpTo(s.lease.Request)
	}
	return s.lease.Request + s.random.DurationUpTo(s.lease.Lease)
}

func terminateProcess(ctx context.Context, p *framework.Process) error {
	if err := sendSignal(p, syscall.SIGTERM); err != nil {
		return err
	}
	return waitForEnd(ctx, p)
}

// waitForEnd waits for the end of a process.
func waitForEnd(ctx context.Context, p *framework.Process) error {
	return assert.Poll(ctx, fmt.Sprintf("the end of process %d", p.PID()), func() error {
		if !p.HasEnded() {
			return errors.New("it runs")
		}
		return nil
	})
}

// deleteLease deletes it as a user does, once the API server answers.
func (s *faultInjector) deleteLease(ctx context.Context) error {
	return users.RetryRequest(ctx, func(ctx context.Context) error {
		err := s.KubeClient.CoordinationV1().Leases(metav1.NamespaceDefault).Delete(ctx, leaseName, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *faultInjector) killAPI(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	users.Sleep(ctx, s.random.DurationUpTo(s.lease.Lease))
	return s.Start()
}
