// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/vmtest"
)

// Kind of a fault.
type Kind string

// The kinds.
const (
	Halt      Kind = "SIGSTOP"
	Kill      Kind = "SIGKILL"
	Term      Kind = "SIGTERM"
	Cut       Kind = "cut off"
	Blackhole Kind = "blackhole"
	Late      Kind = "late replies"
	Unlease   Kind = "Lease deleted"
	KillAPI   Kind = "API server killed"
)

const (
	// lease is the length of the Lease; faults last up to three times as long.
	lease   = 3 * time.Second
	longest = 3 * lease
	// hands are how many faults are active at a time, unless specified.
	hands = 2
	// maxGap is the longest pause between one fault and the next of a hand.
	maxGap = 1500 * time.Millisecond
	// leaderShare of the faults affect the leader.
	leaderShare = 0.8
	// stopWithin is how long a replica may take to end on SIGTERM.
	stopWithin = 20 * time.Second
	// requestTimeout bounds requests to the API.
	requestTimeout = 5 * time.Second
)

// Fault is an injected fault, with its time. PID is 0 for one that affected all
// processes.
type Fault struct {
	Kind     Kind
	PID      int
	From, To time.Time
}

// storm injects faults into a world.
type storm struct {
	*world
	random *chance
	hands  int

	mu     sync.Mutex
	left   []Kind
	faults []Fault
	api    sync.Mutex // held while the API server is down
}

// chance is a random generator for several hands.
type chance struct {
	mu     sync.Mutex
	random *rand.Rand
}

func newChance(seed, stream uint64) *chance {
	return &chance{random: rand.New(rand.NewPCG(seed, stream))} //nolint:gosec // no secret
}

// upTo returns a random time.
func (c *chance) upTo(d time.Duration) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Duration(c.random.Int64N(int64(d)))
}

func (c *chance) intn(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.IntN(n)
}

func (c *chance) often(share float64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.random.Float64() < share
}

// newStorm returns the faults of a plan in a random order.
func newStorm(w *world, plan []Kind, seed uint64) *storm {
	s := &storm{world: w, random: newChance(seed, 1), hands: hands, left: append([]Kind(nil), plan...)}
	s.random.random.Shuffle(len(s.left), func(i, j int) { s.left[i], s.left[j] = s.left[j], s.left[i] })
	return s
}

// rage injects faults until none is left, or ctx ends.
func (s *storm) rage(ctx context.Context) ([]Fault, error) {
	errs := make(chan error, s.hands)
	for range s.hands {
		go func() { errs <- s.hand(ctx) }()
	}
	var err error
	for range s.hands {
		err = errors.Join(err, <-errs)
	}
	return s.faults, err
}

func (s *storm) hand(ctx context.Context) error {
	for kind, ok := s.next(); ok && ctx.Err() == nil; kind, ok = s.next() {
		sleep(ctx, s.random.upTo(maxGap))
		fault, err := s.strike(ctx, kind)
		switch {
		case ctx.Err() != nil: // what it was cut short at says nothing
		case err != nil:
			return fmt.Errorf("%s: %w", kind, err)
		}
		s.mu.Lock()
		s.faults = append(s.faults, fault)
		s.mu.Unlock()
	}
	return nil
}

func (s *storm) next() (Kind, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.left) == 0 {
		return "", false
	}
	kind := s.left[0]
	s.left = s.left[1:]
	return kind, true
}

// strike runs one fault to its end.
func (s *storm) strike(ctx context.Context, kind Kind) (f Fault, err error) {
	f.Kind = kind
	switch kind {
	case Unlease:
		f.From = time.Now()
		err = s.deleteLease(ctx)
	case KillAPI:
		s.api.Lock()
		defer s.api.Unlock()
		f.From = time.Now()
		err = s.killAPI(ctx)
	default:
		r, p := s.target(ctx)
		if r == nil {
			return f, nil
		}
		defer r.letGo()
		f.PID, f.From = p.PID(), time.Now()
		err = s.hurt(ctx, kind, r, p)
	}
	f.To = time.Now()
	return f, err
}

// target reserves the leader, most of the time, or any running replica.
func (s *storm) target(ctx context.Context) (*replica, *vmtest.Process) {
	wanted := s.random.often(leaderShare)
	for begin := time.Now(); ctx.Err() == nil; sleep(ctx, lookPeriod) {
		r := s.replicas[s.random.intn(len(s.replicas))]
		if wanted && time.Since(begin) < 2*lease {
			if r = s.leader(ctx); r == nil {
				continue
			}
		}
		if p, ok := r.seize(); ok {
			return r, p
		}
	}
	return nil, nil
}

// leader returns the replica that the Lease names, or nil.
func (w *world) leader(ctx context.Context) *replica {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	l, err := w.Kube.CoordinationV1().Leases(metav1.NamespaceDefault).Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return nil
	}
	name, _, _ := strings.Cut(*l.Spec.HolderIdentity, "_")
	for _, r := range w.replicas {
		if r.name == name {
			return r
		}
	}
	return nil
}

// hurt applies a fault to one replica.
func (s *storm) hurt(ctx context.Context, kind Kind, r *replica, p *vmtest.Process) error {
	switch kind {
	case Halt:
		err := signal(p, syscall.SIGSTOP)
		sleep(ctx, s.random.upTo(longest))
		return errors.Join(err, signal(p, syscall.SIGCONT))
	case Kill:
		return signal(p, syscall.SIGKILL)
	case Term:
		return terminate(ctx, p)
	case Cut:
		r.proxy.Cut()
	case Blackhole:
		r.proxy.Blackhole()
	case Late:
		r.proxy.Late(s.lateness())
	default:
		return errors.New("it strikes no single replica")
	}
	sleep(ctx, s.random.upTo(longest))
	r.proxy.Restore()
	return nil
}

// lateness returns, half of the time, a delay that a renewal may survive.
func (s *storm) lateness() time.Duration {
	if s.random.often(0.5) {
		return s.random.upTo(requestLimit)
	}
	return requestLimit + s.random.upTo(lease)
}

func terminate(ctx context.Context, p *vmtest.Process) error {
	if err := signal(p, syscall.SIGTERM); err != nil {
		return err
	}
	for begin := time.Now(); !p.Over() && ctx.Err() == nil; sleep(ctx, lookPeriod) {
		if time.Since(begin) > stopWithin {
			return errors.Join(fmt.Errorf("process %d did not end within %s", p.PID(), stopWithin), signal(p, syscall.SIGKILL))
		}
	}
	return nil
}

// deleteLease deletes it as a user does, once the API server answers.
func (s *storm) deleteLease(ctx context.Context) error {
	return insist(ctx, func(ctx context.Context) error {
		err := s.Kube.CoordinationV1().Leases(metav1.NamespaceDefault).Delete(ctx, leaseName, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

func (s *storm) killAPI(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	sleep(ctx, s.random.upTo(lease))
	return s.Start()
}
