// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"context"
	"fmt"
	"io"
	legacyrand "math/rand"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

// world is everything that a schedule runs: an API server, an engine, replicas, users.
type world struct {
	gate      *gate
	scheduler *scheduler
	random    *rand.Rand
	api       *apiServer
	// engines are the one that has the servers, and one that may be in its place for a while.
	memory, other *fake.Memory
	otherID       string
	// exchangedAt is when the other one took that place; zero while it is not there.
	exchangedAt time.Time
	scheme      *runtime.Scheme
	mapper      meta.RESTMapper
	replicas    []*replica
	dying       []*process // killed, with goroutines that have yet to end
	watchers    []*watcher
	streams     []*stream
	judge       *judge
	users       *users
	faults      *faults
	out         io.Writer
	began       time.Time
	names       int
	// checksRest reports whether what happens at rest is checked too, which takes longer.
	checksRest bool
}

func newWorld(o Options) (*world, error) {
	w := &world{
		gate: newGate(), random: rand.New(rand.NewPCG(o.Seed, 1)), api: newAPIServer(), memory: fake.NewMemory(clock.RealClock{}), other: fake.NewMemory(clock.RealClock{}), //nolint:gosec // chance
		out: o.Trace, began: time.Now(), scheme: runtime.NewScheme(),
	}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		if err := add(w.scheme); err != nil {
			return nil, err
		}
	}
	other, err := fake.New(fake.Options{ClusterID: "cluster", Memory: w.other})
	if err != nil {
		return nil, err
	}
	if w.otherID, err = other.EngineID(context.Background()); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{api.SchemeGroupVersion})
	mapper.Add(api.SchemeGroupVersion.WithKind("VirtualMachine"), meta.RESTScopeNamespace)
	w.mapper = mapper
	w.scheduler = &scheduler{gate: w.gate, world: w, random: rand.New(rand.NewPCG(o.Seed, 2)), weights: map[string]float64{}}               //nolint:gosec // chance
	w.judge, w.users, w.faults = newJudge(w), newUsers(w, rand.New(rand.NewPCG(o.Seed, 3))), newFaults(w, rand.New(rand.NewPCG(o.Seed, 4))) //nolint:gosec // chance
	for n := range 2 + w.random.IntN(2) {
		w.replicas = append(w.replicas, &replica{world: w, name: string(rune('a' + n))})
	}
	w.checksRest = w.random.IntN(4) == 0
	w.seedLegacyRandom()
	return w, nil
}

// seedLegacyRandom makes client-go's jitter reproducible. It is called wherever the
// runtime's order might have influenced how many numbers were drawn.
func (w *world) seedLegacyRandom() {
	legacyrand.Seed(w.random.Int64()) //nolint:staticcheck // client-go draws from this source
}

// newName names servers and runs.
func (w *world) newName() string {
	w.names++
	return fmt.Sprintf("%06d", w.names)
}

// Eventf implements events.EventRecorder.
func (w *world) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

// trace records a step.
func (w *world) trace(format string, args ...any) {
	if w.out != nil {
		_, _ = fmt.Fprintf(w.out, "%10.6f %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	}
}

// runCall runs a call that has arrived, unless what it is for is down.
func (w *world) runCall(o *operation) {
	if w.faults.apiDown && (o.kind == kindRead || o.kind == kindWrite) {
		o.fail(fmt.Errorf("dial tcp: connection refused"))
		return
	}
	o.run()
}

// failureOf returns the error of a call that fails.
func (w *world) failureOf(o *operation) error {
	if o.kind.isEngine() {
		return driver.Errorf(driver.ErrUnavailable, "the engine failed")
	}
	switch {
	case o.fate == fateFailedAfter:
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	case w.faults.random.IntN(2) == 0:
		return apierrors.NewInternalError(fmt.Errorf("etcdserver: leader changed"))
	case o.kind == kindWrite && w.faults.random.IntN(2) == 0:
		return apierrors.NewConflict(vms, "any", fmt.Errorf("the object has been modified"))
	}
	return apierrors.NewTooManyRequests("too many requests", 1)
}

// dueTimers returns the timers of processes that are due.
func (w *world) dueTimers(now time.Time) (due []*operation, next time.Time) {
	for _, p := range w.processes() {
		if p.isFrozen() {
			continue
		}
		some, at := p.clock.due(now)
		due = append(due, some...)
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return due, next
}

// processes returns those that run.
func (w *world) processes() (all []*process) {
	for _, r := range w.replicas {
		if r.process != nil && !r.process.isDead() {
			all = append(all, r.process)
		}
	}
	return all
}

// leader returns the process that holds the Lease.
func (w *world) leader() *process {
	for _, p := range w.processes() {
		if p.lock.Guard().Epoch() > 0 {
			return p
		}
	}
	return nil
}

// watchEvents returns the events of watches that may be delivered.
func (w *world) watchEvents() (ready []*operation) {
	w.watchers = slices.DeleteFunc(w.watchers, func(s *watcher) bool { return s.closed || s.stopped.Load() || s.process.isDead() })
	for _, s := range w.watchers {
		if s.ending && !s.process.isFrozen() {
			ready = append(ready, &operation{name: fmt.Sprintf("%s %s ends", s.process.name, s.name), owner: s.process, run: s.end})
			continue
		}
		event, ok := w.api.skip(s)
		if !ok || s.process.isFrozen() || s.process.cutUntil.After(time.Now()) || w.faults.delaysEvent(s, event.version) {
			continue
		}
		ready = append(ready, &operation{
			name:  fmt.Sprintf("%s %s: %s %s", s.process.name, s.name, event.kind, event.key.name.Name),
			owner: s.process, run: func() bool { return w.deliver(s, event) },
		})
	}
	w.streams = slices.DeleteFunc(w.streams, func(s *stream) bool { return s.over || s.ctx.Err() != nil || s.process.isDead() })
	for _, s := range w.streams {
		if !s.process.isFrozen() && !w.faults.delaysStream(s) {
			ready = append(ready, s.messages()...)
		}
	}
	return ready
}

func (w *world) deliver(s *watcher, e change) bool {
	select {
	case s.out <- watch.Event{Type: e.kind, Object: e.object.DeepCopyObject()}:
		s.next++
		return true
	default:
		return false
	}
}

// end ends a watch.
func (w *watcher) end() bool {
	w.closed = true
	close(w.out)
	return true
}

// closeWatches ends watches of the API server. Each client learns that by a separate
// message, so that not all begin their backoff at once.
func (w *world) closeWatches(of func(*watcher) bool) {
	for _, s := range w.watchers {
		if !s.closed && !s.stopped.Load() && of(s) {
			s.ending = true
		}
	}
}

// superviseReplicas restarts processes that have ended.
func (w *world) superviseReplicas(healthy bool) error {
	if len(w.dying) > 0 {
		w.stopKilled()
	}
	for _, r := range w.replicas {
		switch {
		case r.process != nil && r.process.hasEnded(w.random):
			w.trace("%s has ended", r.process.name)
			w.end(r)
		case r.process == nil && (healthy || !time.Now().Before(r.startAt)):
			time.Sleep(time.Duration(1 + w.random.IntN(99999))) // so that no deadlines of two processes coincide
			w.trace("%s starts", r.name)
			if err := r.start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// end ends the process of a replica, which is started again later.
func (w *world) end(r *replica) {
	w.gate.awaitOperations()
	r.process.kill()
	r.process, r.startAt = nil, time.Now().Add(time.Duration(w.random.Int64N(int64(6*time.Second))))
	w.stopKilled()
}

// stopKilled stops the goroutines of killed processes.
func (w *world) stopKilled() {
	w.gate.awaitOperations()
	left := len(w.dying)
	w.dying = slices.DeleteFunc(w.dying, func(p *process) bool {
		if p.up.Load() {
			p.cancel()
		}
		return p.up.Load()
	})
	if len(w.dying) < left {
		w.gate.awaitOperations()
		w.seedLegacyRandom()
	}
}

// nextStart returns when the next process is to be started.
func (w *world) nextStart(limit time.Time) time.Time {
	for _, r := range w.replicas {
		if r.process == nil {
			limit = earliest(limit, r.startAt)
		} else if at := r.process.endAt; at.After(time.Now()) {
			limit = earliest(limit, at)
		}
	}
	return limit
}

// object returns a VirtualMachine of the API.
func (w *world) object(name string) *api.VirtualMachine {
	have, err := w.api.get(resourceKey{vms, client.ObjectKey{Namespace: "default", Name: name}})
	if err != nil {
		return nil
	}
	return have.(*api.VirtualMachine) //nolint:forcetypeassert // of this resource
}
