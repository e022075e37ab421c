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

// environment has all parts of a schedule: an API server, an engine, replicas, users.
type environment struct {
	gate      *gate
	scheduler *scheduler
	random    *rand.Rand
	api       *apiServer
	// memory is the engine with the servers, and other an engine that may replace it for a while.
	memory, other *fake.Memory
	otherID       string
	// exchangedAt is when the other engine replaced the first one; zero if it does not.
	exchangedAt time.Time
	scheme      *runtime.Scheme
	mapper      meta.RESTMapper
	replicas    []*replica
	dying       []*process // killed processes whose goroutines have not ended yet
	watchers    []*watcher
	streams     []*stream
	judge       *judge
	users       *users
	faults      *faults
	out         io.Writer
	began       time.Time
	names       int
	// checksRest says that checkRest is called, which takes longer.
	checksRest bool
}

func newEnvironment(o Options) (*environment, error) {
	env := &environment{
		gate: newGate(), random: rand.New(rand.NewPCG(o.Seed, 1)), api: newAPIServer(), memory: fake.NewMemory(clock.RealClock{}), other: fake.NewMemory(clock.RealClock{}), //nolint:gosec // chance
		out: o.Trace, began: time.Now(), scheme: runtime.NewScheme(),
	}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, api.AddToScheme} {
		if err := add(env.scheme); err != nil {
			return nil, err
		}
	}
	other, err := fake.New(fake.Options{ClusterID: "cluster", Memory: env.other})
	if err != nil {
		return nil, err
	}
	if env.otherID, err = other.EngineID(context.Background()); err != nil {
		return nil, err
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{api.SchemeGroupVersion})
	mapper.Add(api.SchemeGroupVersion.WithKind("VirtualMachine"), meta.RESTScopeNamespace)
	env.mapper = mapper
	env.scheduler = &scheduler{gate: env.gate, environment: env, random: rand.New(rand.NewPCG(o.Seed, 2)), weights: map[string]float64{}}               //nolint:gosec // chance
	env.judge, env.users, env.faults = newJudge(env), newUsers(env, rand.New(rand.NewPCG(o.Seed, 3))), newFaults(env, rand.New(rand.NewPCG(o.Seed, 4))) //nolint:gosec // chance
	for n := range 2 + env.random.IntN(2) {
		env.replicas = append(env.replicas, &replica{environment: env, name: string(rune('a' + n))})
	}
	env.checksRest = env.random.IntN(4) == 0
	env.seedLegacyRandom()
	return env, nil
}

// seedLegacyRandom makes client-go's jitter reproducible. It is called whenever the order of
// goroutines may have influenced how many numbers were taken.
func (env *environment) seedLegacyRandom() {
	legacyrand.Seed(env.random.Int64()) //nolint:staticcheck // client-go draws from this source
}

// newName returns a new name for a server or a run.
func (env *environment) newName() string {
	env.names++
	return fmt.Sprintf("%06d", env.names)
}

// Eventf implements events.EventRecorder.
func (env *environment) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {
}

// trace records a step.
func (env *environment) trace(format string, args ...any) {
	if env.out != nil {
		_, _ = fmt.Fprintf(env.out, "%10.6f %s\n", time.Since(env.began).Seconds(), fmt.Sprintf(format, args...))
	}
}

// runCall runs a call. It fails a request if the API is down.
func (env *environment) runCall(o *operation) {
	if env.faults.apiDown && (o.kind == kindRead || o.kind == kindWrite) {
		o.fail(fmt.Errorf("dial tcp: connection refused"))
		return
	}
	o.run()
}

// failureOf returns the error for a call that should fail.
func (env *environment) failureOf(o *operation) error {
	if o.kind.isEngine() {
		return driver.Errorf(driver.ErrUnavailable, "the engine failed")
	}
	switch {
	case o.fate == fateFailedAfter:
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	case env.faults.random.IntN(2) == 0:
		return apierrors.NewInternalError(fmt.Errorf("etcdserver: leader changed"))
	case o.kind == kindWrite && env.faults.random.IntN(2) == 0:
		return apierrors.NewConflict(vms, "any", fmt.Errorf("the object has been modified"))
	}
	return apierrors.NewTooManyRequests("too many requests", 1)
}

// dueTimers returns the timers of processes that are due.
func (env *environment) dueTimers(now time.Time) (due []*operation, next time.Time) {
	for _, p := range env.processes() {
		if p.isFrozen() {
			continue
		}
		timers, at := p.clock.due(now)
		due = append(due, timers...)
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return due, next
}

// processes returns the processes that run.
func (env *environment) processes() (all []*process) {
	for _, r := range env.replicas {
		if r.process != nil && !r.process.isDead() {
			all = append(all, r.process)
		}
	}
	return all
}

// leader returns the process that holds the Lease.
func (env *environment) leader() *process {
	for _, p := range env.processes() {
		if p.lock.Guard().Epoch() > 0 {
			return p
		}
	}
	return nil
}

// watchEvents returns the events of watches that may be delivered.
func (env *environment) watchEvents() (ready []*operation) {
	env.watchers = slices.DeleteFunc(env.watchers, func(s *watcher) bool { return s.closed || s.stopped.Load() || s.process.isDead() })
	for _, s := range env.watchers {
		if s.ending && !s.process.isFrozen() {
			ready = append(ready, &operation{name: fmt.Sprintf("%s %s ends", s.process.name, s.name), owner: s.process, run: s.end})
			continue
		}
		event, ok := env.api.skip(s)
		if !ok || s.process.isFrozen() || s.process.cutUntil.After(time.Now()) || env.faults.delaysEvent(s, event.version) {
			continue
		}
		ready = append(ready, &operation{
			name:  fmt.Sprintf("%s %s: %s %s", s.process.name, s.name, event.kind, event.key.name.Name),
			owner: s.process, run: func() bool { return env.deliver(s, event) },
		})
	}
	env.streams = slices.DeleteFunc(env.streams, func(s *stream) bool { return s.over || s.ctx.Err() != nil || s.process.isDead() })
	for _, s := range env.streams {
		if !s.process.isFrozen() && !env.faults.delaysStream(s) {
			ready = append(ready, s.messages()...)
		}
	}
	return ready
}

func (env *environment) deliver(s *watcher, e change) bool {
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

// closeWatches ends watches of the API server. Each client is told so by a separate
// message, so that not all begin their backoff at once.
func (env *environment) closeWatches(isChosen func(*watcher) bool) {
	for _, s := range env.watchers {
		if !s.closed && !s.stopped.Load() && isChosen(s) {
			s.ending = true
		}
	}
}

// superviseReplicas restarts processes that have ended.
func (env *environment) superviseReplicas(healthy bool) error {
	if len(env.dying) > 0 {
		env.stopKilled()
	}
	for _, r := range env.replicas {
		switch {
		case r.process != nil && r.process.hasEnded(env.random):
			env.trace("%s has ended", r.process.name)
			env.end(r)
		case r.process == nil && (healthy || !time.Now().Before(r.startAt)):
			time.Sleep(time.Duration(1 + env.random.IntN(99999))) // so that no deadlines of two processes coincide
			env.trace("%s starts", r.name)
			if err := r.start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// end ends the process of a replica and determines when the next one starts.
func (env *environment) end(r *replica) {
	env.gate.awaitOperations()
	r.process.kill()
	r.process, r.startAt = nil, time.Now().Add(time.Duration(env.random.Int64N(int64(6*time.Second))))
	env.stopKilled()
}

// stopKilled stops the goroutines of killed processes.
func (env *environment) stopKilled() {
	env.gate.awaitOperations()
	left := len(env.dying)
	env.dying = slices.DeleteFunc(env.dying, func(p *process) bool {
		if p.up.Load() {
			p.cancel()
		}
		return p.up.Load()
	})
	if len(env.dying) < left {
		env.gate.awaitOperations()
		env.seedLegacyRandom()
	}
}

// nextStart returns when the next process is started or ends, limit at the latest.
func (env *environment) nextStart(limit time.Time) time.Time {
	for _, r := range env.replicas {
		if r.process == nil {
			limit = earliest(limit, r.startAt)
		} else if at := r.process.endAt; at.After(time.Now()) {
			limit = earliest(limit, at)
		}
	}
	return limit
}

// object returns a VirtualMachine of the API.
func (env *environment) object(name string) *api.VirtualMachine {
	have, err := env.api.get(resourceKey{vms, client.ObjectKey{Namespace: "default", Name: name}})
	if err != nil {
		return nil
	}
	return have.(*api.VirtualMachine) //nolint:forcetypeassert // of this resource
}
