// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing/synctest"
	"time"
)

// errLost is the error of a call whose connection broke.
var errLost = errors.New("the connection was lost")

// errKilled is the error of all calls of a killed process.
var errKilled = errors.New("the process was killed")

// connectionTimeout is the time after which a client without a deadline notices that its
// connection is dead.
const connectionTimeout = 45 * time.Second

// operation is a call of a process or a message to a process, which waits at the gate.
type operation struct {
	name  string
	owner *process // nil for the environment
	kind  kind
	// run carries out the operation, on the scheduler's goroutine. It reports whether it could.
	run func() bool
	// fail ends a call without effect.
	fail func(error)
	// answer lets the caller of a call continue; nil for a message.
	answer chan struct{}

	known    bool // decideFate was called
	fate     fate
	notUntil time.Time
	done     bool // the call has taken effect, and its answer waits
	left     bool // the caller has given up
	late     bool // decideLate was called
}

// kind is the kind of an operation, by which faults are chosen.
type kind int

const (
	kindMessage kind = iota
	kindRequest      // a request on its way into a queue
	kindWork         // a worker that takes a request
	kindRead
	kindWrite
	kindEngineRead
	kindEngineWrite
)

func (k kind) isCall() bool   { return k > kindRequest }
func (k kind) isWrite() bool  { return k == kindWrite || k == kindEngineWrite }
func (k kind) isEngine() bool { return k == kindEngineRead || k == kindEngineWrite }

// gate holds every operation until the scheduler lets it continue.
type gate struct {
	mu      sync.Mutex
	waiting []*operation
	arrived chan struct{}
}

func newGate() *gate { return &gate{arrived: make(chan struct{}, 1)} }

func (g *gate) add(o *operation) {
	g.mu.Lock()
	g.waiting = append(g.waiting, o)
	g.mu.Unlock()
	g.wake()
}

// wake ends the scheduler's sleep.
func (g *gate) wake() {
	select {
	case g.arrived <- struct{}{}:
	default:
	}
}

// call makes a call, and waits until the scheduler has let the call and its answer pass.
func call[T any](ctx context.Context, p *process, k kind, name string, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var got result
	var none T
	if p.isDead() {
		return none, errKilled
	}
	if err := ctx.Err(); err != nil {
		return none, err
	}
	o := &operation{name: name, owner: p, kind: k, answer: make(chan struct{}, 1)}
	o.run = func() bool { got.value, got.err = do(); return true }
	o.fail = func(err error) { got = result{err: err} }
	p.environment.gate.add(o)
	select {
	case <-o.answer:
		return got.value, got.err
	case <-ctx.Done():
		p.environment.gate.leave(o)
		return none, context.Cause(ctx)
	}
}

// leave records that the caller of an operation has given up.
func (g *gate) leave(o *operation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o.left = true
}

func (g *gate) drop(which func(*operation) bool) (dropped []*operation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = slices.DeleteFunc(g.waiting, func(o *operation) bool {
		if which(o) {
			dropped = append(dropped, o)
			return true
		}
		return false
	})
	return dropped
}

// awaitOperations waits until all goroutines are blocked, and returns the waiting operations in an
// order that does not depend on the runtime.
func (g *gate) awaitOperations() []*operation {
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.arrived:
	default:
	}
	slices.SortStableFunc(g.waiting, func(a, b *operation) int { return cmp.Compare(a.name, b.name) })
	return slices.Clone(g.waiting)
}

// sleepUntil sleeps until a time, or until an operation arrives.
func (g *gate) sleepUntil(until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-g.arrived:
	case <-timer.C:
	}
}

// isCut reports whether a call cannot reach the API because its process is disconnected.
func (o *operation) isCut(now time.Time) bool {
	return o.owner != nil && (o.kind == kindRead || o.kind == kindWrite) && !o.left && o.owner.cutUntil.After(now)
}

// fate is the outcome of a call.
type fate int

const (
	fateNormal fate = iota
	// fateLost means that the call never arrives.
	fateLost
	// fateUnanswered means that the call takes effect, but its answer never arrives.
	fateUnanswered
	// fateRefused means that the call fails without an effect.
	fateRefused
	// fateFailedAfter means that the call takes effect, but its answer is an error.
	fateFailedAfter
	// fateSlow means that the call takes effect, but its answer is late.
	fateSlow
)

var fateNames = map[fate]string{
	fateLost: "never arrives", fateUnanswered: "is done, the answer lost", fateRefused: "fails",
	fateFailedAfter: "is done, and fails", fateSlow: "is done, the answer late",
}

func (f fate) String() string { return fateNames[f] }

// scheduler lets operations continue one at a time, in an order that the seed determines.
type scheduler struct {
	*gate
	environment *environment
	random      *rand.Rand
	// weights has the weights of operations by kind and owner. They differ between schedules, so
	// that in some schedules some operations starve.
	weights map[string]float64
	steps   int
}

// step lets one operation continue, or advances the clock up to limit.
func (s *scheduler) step(limit time.Time) {
	ready, next := s.collect(s.awaitOperations(), limit)
	if len(ready) > 0 && s.random.IntN(24) == 0 {
		time.Sleep(time.Duration(1 + s.random.Int64N(int64(5*time.Millisecond))))
		return
	}
	for len(ready) > 0 {
		n := s.pick(ready)
		time.Sleep(time.Duration(1 + s.random.IntN(999))) // so that no two deadlines coincide
		if s.advance(ready[n]) {
			s.steps++
			return
		}
		ready = slices.Delete(ready, n, n+1)
	}
	s.sleepUntil(next)
}

// collect decides the fate of new operations, and returns the operations that may continue
// now, and the time of the next one.
func (s *scheduler) collect(all []*operation, limit time.Time) (ready []*operation, next time.Time) {
	now, next := time.Now(), limit
	all = s.dropWork(all)
	s.decideFates(all)
	for _, o := range all {
		switch {
		case o.owner != nil && (o.owner.isFrozen() || o.owner.doomed) && !o.left:
			if o.owner.doomed {
				next = now
			}
		case o.isCut(now):
			next = earliest(next, o.owner.cutUntil)
		case o.notUntil.After(now):
			next = earliest(next, o.notUntil)
		default:
			ready = append(ready, o)
		}
	}
	s.drop(func(o *operation) bool { return o.left && (o.done || o.fate == fateLost) })
	ready = slices.DeleteFunc(ready, func(o *operation) bool { return o.left && (o.done || o.fate == fateLost) })
	due, at := s.environment.dueTimers(now)
	ready = append(ready, due...)
	if !at.IsZero() {
		next = earliest(next, at)
	}
	ready = append(ready, s.environment.watchEvents()...)
	slices.SortStableFunc(ready, func(a, b *operation) int { return cmp.Compare(a.name, b.name) })
	return ready, next
}

// decideFates decides the outcome of new operations, and of those whose caller has given up.
func (s *scheduler) decideFates(all []*operation) {
	for _, o := range all {
		if !o.known {
			o.known = true
			s.environment.decideFate(o)
		}
		if o.left && !o.done {
			s.environment.decideLate(o)
		}
	}
}

// dropWork drops the requests in queues of processes that stop or are dead, except requests
// whose fate is decided already.
func (s *scheduler) dropWork(all []*operation) []*operation {
	isOver := func(o *operation) bool {
		return (o.kind == kindRequest || o.kind == kindWork) && !o.known && (o.owner.stopping.Load() || o.owner.isDead())
	}
	for _, o := range s.drop(isOver) {
		if o.kind == kindWork {
			o.fail(errKilled)
			o.answer <- struct{}{}
		}
	}
	return slices.DeleteFunc(all, isOver)
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// pick chooses an operation by weight.
func (s *scheduler) pick(ready []*operation) int {
	sum := 0.0
	for _, o := range ready {
		sum += s.weightOf(o)
	}
	at := s.random.Float64() * sum
	for n, o := range ready {
		if at -= s.weightOf(o); at < 0 {
			return n
		}
	}
	return len(ready) - 1
}

func (s *scheduler) weightOf(o *operation) float64 {
	class := fmt.Sprint(o.kind)
	if o.owner != nil {
		class += o.owner.replica.name
	}
	w, ok := s.weights[class]
	if !ok {
		w = []float64{1, 1, 1, 0.2, 0.03}[s.random.IntN(5)]
		s.weights[class] = w
	}
	return w
}

// advance lets an operation take effect, or its answer arrive. It reports whether it could.
func (s *scheduler) advance(o *operation) bool {
	if !o.kind.isCall() {
		if !o.run() {
			return false
		}
		s.remove(o)
		s.environment.trace("%s", o.name)
		return true
	}
	if o.done {
		s.environment.trace("%s: answered", o.name)
		s.finish(o)
		return true
	}
	if o.fate != fateLost && o.fate != fateRefused {
		s.environment.runCall(o)
	}
	s.endOrHold(o)
	return true
}

// endOrHold ends a call that has passed the gate, or holds its answer.
func (s *scheduler) endOrHold(o *operation) {
	s.environment.countFault(o)
	late := ""
	if o.left {
		late = " (late)"
	}
	s.environment.trace("%s%s %s", o.name, late, o.fate)
	switch {
	case o.left, o.fate == fateNormal:
		s.finish(o)
	case o.fate == fateRefused, o.fate == fateFailedAfter:
		o.fail(s.environment.failureOf(o))
		s.finish(o)
	case o.fate == fateSlow:
		o.done, o.notUntil = true, time.Now().Add(time.Duration(s.random.Int64N(int64(3*time.Second))))
	default: // the caller gives up, by its deadline or its connection's
		o.fail(errLost)
		o.done, o.notUntil = true, time.Now().Add(connectionTimeout)
	}
}

func (s *scheduler) finish(o *operation) {
	s.remove(o)
	o.answer <- struct{}{}
}

func (s *scheduler) remove(o *operation) {
	s.drop(func(other *operation) bool { return other == o })
}
