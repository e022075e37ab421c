// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/framework/rules"
)

// faults injects faults.
type faults struct {
	environment *environment
	random      *rand.Rand
	// share is the share of calls that do not have a normal fate.
	share   float64
	enabled bool
	next    time.Time
	ends    []recovery
	apiDown bool
	victim  *process // of the next fault; nil for any
	counts  map[string]int
}

// recovery is the end of a fault.
type recovery struct {
	at  time.Time
	end func()
}

func newFaults(env *environment, random *rand.Rand) *faults {
	f := &faults{environment: env, random: random, enabled: true, counts: map[string]int{}}
	f.share = []float64{0, 0.02, 0.08, 0.25}[random.IntN(4)]
	f.next = time.Now().Add(f.upTo(15 * time.Second))
	return f
}

func (f *faults) upTo(d time.Duration) time.Duration { return time.Duration(f.random.Int64N(int64(d))) }

func (f *faults) between(a, b time.Duration) time.Duration { return a + f.upTo(b-a) }

func (f *faults) count(kind string) { f.counts[kind]++ }

// decideFate decides the outcome of a call.
func (env *environment) decideFate(o *operation) {
	f := env.faults
	if !f.enabled || !o.kind.isCall() || o.kind == kindWork || f.share == 0 {
		return
	}
	if o.kind == kindEngineWrite && !o.owner.isFrozen() && f.random.IntN(strikeShare) == 0 {
		f.strike(o.owner)
		return
	}
	if f.random.Float64() >= f.share {
		return
	}
	fates := []fate{fateLost, fateRefused, fateSlow, fateSlow}
	if o.kind.isWrite() {
		fates = []fate{fateLost, fateUnanswered, fateRefused, fateFailedAfter, fateSlow}
	}
	o.fate = fates[f.random.IntN(len(fates))]
	if f.random.IntN(3) == 0 {
		o.notUntil = time.Now().Add(f.upTo(3 * time.Second))
	}
}

// strikeShare is n if one of n calls that change the engine is interrupted by a fault.
const strikeShare = 10

// strike injects a fault into a process in the middle of a call.
func (f *faults) strike(p *process) {
	f.victim = p
	defer func() { f.victim = nil }()
	kinds := []func(){f.kill, f.freeze, f.suspend, f.suspend, f.cut}
	kinds[f.random.IntN(len(kinds))]()
}

// lateLimit is how long a call may still take effect after its caller gave up. It is less than
// an engine's settle period and an API server's request timeout.
const lateLimit = 25 * time.Second

// decideLate decides whether a call whose caller has given up still takes effect, and when.
func (env *environment) decideLate(o *operation) {
	if o.late {
		return
	}
	o.late = true
	if !env.faults.enabled || !o.kind.isWrite() || env.faults.random.IntN(2) == 0 {
		o.fate = fateLost
		return
	}
	o.fate, o.notUntil = fateNormal, time.Now().Add(env.faults.upTo(lateLimit))
	env.faults.count("late call")
}

// survive decides whether a call of a killed process still takes effect, as it may already be sent.
func (env *environment) survive(o *operation) {
	if !o.kind.isWrite() || o.done || o.fate == fateLost || env.faults.random.IntN(3) > 0 {
		return
	}
	env.faults.count("call of a dead process")
	env.gate.add(&operation{name: o.name + " (sent before its end)", run: o.run, notUntil: time.Now().Add(env.faults.upTo(lateLimit)), known: true})
}

func (env *environment) countFault(o *operation) {
	if o.fate != fateNormal {
		env.faults.count("call " + o.fate.String())
	}
}

// chooseLag returns how many versions a list for the cache is behind.
func (env *environment) chooseLag(most uint64) uint64 {
	if !env.faults.enabled || most == 0 || env.faults.random.IntN(3) > 0 {
		return 0
	}
	env.faults.count("old list")
	return env.faults.random.Uint64N(min(most, 60) + 1)
}

// eventDelays are bounds for how late events are: the API does not guarantee any.
var eventDelays = []time.Duration{time.Second, 10 * time.Second, 40 * time.Second, 150 * time.Second}

// delaysEvent reports whether the next event of a watch is still delayed.
func (f *faults) delaysEvent(s *watcher, version uint64) bool {
	if s.version != version {
		s.version, s.notUntil = version, time.Time{}
		if f.enabled && f.random.IntN(12) == 0 {
			s.notUntil = time.Now().Add(f.upTo(eventDelays[f.random.IntN(len(eventDelays))]))
			f.count("late event")
		}
	}
	return f.enabled && time.Now().Before(s.notUntil)
}

// delaysStream reports whether the events of an engine are still delayed.
func (f *faults) delaysStream(s *stream) bool {
	n := s.pending()
	if n > s.last && f.enabled && f.random.IntN(12) == 0 {
		s.notUntil = time.Now().Add(f.upTo(eventDelays[f.random.IntN(3)]))
		f.count("late engine event")
	}
	s.last = n
	return f.enabled && time.Now().Before(s.notUntil)
}

// inject injects the faults that are due, and ends those that are over.
func (f *faults) inject() {
	now := time.Now()
	for n := 0; n < len(f.ends); n++ {
		if e := f.ends[n]; !e.at.After(now) || !f.enabled {
			f.ends = append(f.ends[:n], f.ends[n+1:]...)
			e.end()
			n--
		}
	}
	if !f.enabled || now.Before(f.next) {
		return
	}
	f.next = now.Add(f.between(time.Second, 25*time.Second))
	kinds := []func(){f.kill, f.kill, f.stop, f.stop, f.freeze, f.freeze, f.suspend, f.loseEngine, f.loseAPI, f.closeWatches, f.cut, f.cut, f.compact, f.edit, f.edit, f.edit, f.exchange}
	kinds[f.random.IntN(len(kinds))]()
}

// nextDue returns when the next fault begins or ends, limit at the latest.
func (f *faults) nextDue(limit time.Time) time.Time {
	for _, e := range f.ends {
		limit = earliest(limit, e.at)
	}
	if f.enabled {
		limit = earliest(limit, f.next)
	}
	return limit
}

func (f *faults) endAfter(d time.Duration, end func()) {
	f.ends = append(f.ends, recovery{time.Now().Add(d), end})
}

// target returns the process for the next fault, mostly the leader.
func (f *faults) target() *process {
	if f.victim != nil {
		return f.victim
	}
	all := f.environment.processes()
	if leader := f.environment.leader(); leader != nil && f.random.IntN(4) > 0 {
		return leader
	}
	if len(all) == 0 {
		return nil
	}
	return all[f.random.IntN(len(all))]
}

// on runs a fault on a process, if there is one.
func (f *faults) on(kind string, do func(p *process)) {
	if p := f.target(); p != nil {
		f.count(kind)
		f.environment.trace("FAULT %s: %s", kind, p.name)
		do(p)
	}
}

func (f *faults) kill() {
	f.on("killed", func(p *process) { p.endAt, p.doomed = time.Now(), true })
}

func (f *faults) stop() {
	f.on("stopped", func(p *process) {
		if p.up.Load() {
			p.cancel()
		} else {
			p.endAt, p.doomed = time.Now(), true
		}
	})
}

// freeze halts a process for a while, which may be longer than the Lease's duration.
func (f *faults) freeze() {
	f.on("frozen", func(p *process) {
		p.frozen.Store(true)
		f.endAfter(f.between(time.Second, 40*time.Second), func() {
			f.environment.trace("%s goes on", p.name)
			p.frozen.Store(false)
		})
	})
}

// suspend halts a process and its clock, as when its virtual machine is suspended.
func (f *faults) suspend() {
	f.on("suspended", func(p *process) {
		p.frozen.Store(true)
		began := time.Now()
		f.endAfter(f.between(time.Second, 40*time.Second), func() {
			f.environment.trace("%s goes on, its clock behind", p.name)
			p.clock.behind.Add(int64(time.Since(began)))
			p.frozen.Store(false)
		})
	})
}

func (f *faults) loseEngine() {
	f.count("engine outage")
	f.environment.trace("FAULT the engine is unreachable")
	f.environment.memory.SetAvailable(false)
	f.endAfter(f.between(100*time.Millisecond, 20*time.Second), func() {
		f.environment.trace("the engine is back")
		f.environment.memory.SetAvailable(true)
	})
}

func (f *faults) loseAPI() {
	f.count("API outage")
	f.environment.trace("FAULT the API is down")
	f.apiDown = true
	f.environment.closeWatches(func(*watcher) bool { return true })
	f.endAfter(f.between(100*time.Millisecond, 25*time.Second), func() {
		f.environment.trace("the API is back")
		f.apiDown = false
	})
}

func (f *faults) closeWatches() {
	f.count("watches closed")
	f.environment.trace("FAULT all watches end")
	f.environment.closeWatches(func(*watcher) bool { return true })
}

func (f *faults) compact() {
	f.count("log compacted")
	f.environment.trace("FAULT the log is compacted")
	f.environment.api.first = f.environment.api.version
	f.environment.closeWatches(func(s *watcher) bool { return s.process.replica.name == "a" })
}

// cut disconnects a process from the API.
func (f *faults) cut() {
	f.on("cut off", func(p *process) {
		until := time.Now().Add(f.between(time.Second, 40*time.Second))
		p.cutUntil = until
		f.endAfter(time.Until(until), func() {
			f.environment.trace("%s reaches the API", p.name)
			p.cutUntil = time.Time{}
		})
	})
}

// edits are the changes that people make to servers, by name. Each reports whether it had an effect.
var edits = map[string]func(env *environment, r fake.Record) bool{
	"ended by hand": func(env *environment, r fake.Record) bool {
		if rules.StateAt(&r, time.Now()) != driver.StateRunning {
			return false
		}
		env.users.wanted[r.UID].AtMost++
		return env.memory.Edit(r.UID, func(r *fake.Record) {
			r.State, r.Exit = driver.StateStopped, &fake.Exit{Code: 137, Reason: "killed", At: time.Now()}
		}) == nil
	},
	"paused by hand": func(env *environment, r fake.Record) bool {
		return rules.StateAt(&r, time.Now()) == driver.StateRunning && env.memory.Edit(r.UID, func(r *fake.Record) { r.State = driver.StatePaused }) == nil
	},
	"removed by hand": func(env *environment, r fake.Record) bool {
		want := env.users.wanted[r.UID]
		want.lost = true
		want.AtMost++
		env.judge.creates[r.UID]--
		env.memory.Remove(r.UID)
		return true
	},
	"resized by hand": func(env *environment, r fake.Record) bool {
		return env.memory.Edit(r.UID, func(r *fake.Record) { r.CPUMilli = 250 }) == nil
	},
}

// edit changes or removes a server without Drover.
func (f *faults) edit() {
	env := f.environment
	servers := slices.DeleteFunc(env.memory.Records(), func(r fake.Record) bool { return r.Retained || r.UID == foreignUID })
	if len(servers) == 0 {
		return
	}
	r, names := servers[f.random.IntN(len(servers))], slices.Sorted(maps.Keys(edits))
	name := names[f.random.IntN(len(names))]
	if edits[name](env, r) {
		f.count(name)
		env.trace("FAULT %s: the server of %s", name, r.Name)
		env.judge.history[r.UID] = append(env.judge.history[r.UID], moment{time.Now(), findRecord(env.memory.Records(), r.UID)})
	}
}

// exchange replaces the engine by another one for a while, but not while a VirtualMachine is not
// bound yet, as it would be bound to the other engine.
func (f *faults) exchange() {
	env := f.environment
	unbound := func(object client.Object) bool {
		vm, ok := object.(*api.VirtualMachine)
		return ok && vm.Annotations[api.AnnotationBound] == ""
	}
	if !env.exchangedAt.IsZero() || slices.ContainsFunc(env.api.list(vms, env.api.version), unbound) {
		return
	}
	f.count("engine exchanged")
	env.trace("FAULT another engine is in the engine's place")
	env.exchangedAt = time.Now()
	env.memory.SetAvailable(false) // ends its connections
	env.memory.SetAvailable(true)
	f.endAfter(f.between(100*time.Millisecond, []time.Duration{time.Second, 20 * time.Second, 90 * time.Second}[f.random.IntN(3)]), func() {
		env.trace("the engine is back in its place")
		env.exchangedAt = time.Time{}
		env.other.SetAvailable(false)
		env.other.SetAvailable(true)
	})
}
