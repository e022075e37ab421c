// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// Answer is what an inventory reports about a UID.
type Answer int

// The answers.
const (
	// Unknown means that the engine has not been listed completely yet, or is
	// unreachable. Nothing may be created or deleted on this answer.
	Unknown Answer = iota
	// Gone means that the engine has no server with this UID.
	Gone
	// Present means that the engine has a server with this UID.
	Present
)

// settlePeriod is how long after an ambiguous creation "gone" proves nothing: the
// engine may still carry out the creation.
const settlePeriod = 30 * time.Second

// Observation is an inventory's answer for one UID.
type Observation struct {
	Answer Answer
	// Server is the server of a Present answer.
	Server driver.Server
	// Duplicates are the IDs of the servers if there is more than one.
	Duplicates []string
	// Rates is the server's usage, nil until there are two samples of one run.
	Rates *Rates
	// EngineID is the id of the engine that answered, empty before the first
	// answer.
	EngineID string
	// DownSince is when the engine became unreachable or, if Fenced, refused this
	// process. Cause is the reason. DownSince is the zero time while the engine is
	// being listed for the first time.
	DownSince time.Time
	Cause     error
	// BackSince is when the engine last came back from an outage.
	BackSince time.Time
	// Fenced is set while the engine refuses this process although it leads. The
	// answer is then Unknown since DownSince, and Cause has the engine's message.
	Fenced bool
	// SettlesAt is when a Gone answer becomes reliable: the zero time, or a while
	// after a creation with an unknown outcome.
	SettlesAt time.Time
}

// Change notifies a subscriber of what may need a reconcile pass.
type Change struct {
	// All is set when the whole engine appeared or disappeared; the rest is empty
	// then.
	All bool
	UID types.UID
	// VM is the name of the VirtualMachine that the server was made for. It is
	// empty if the engine does not know it.
	VM types.NamespacedName
	// Routine is set when only the usage changed.
	Routine bool
}

// Options are the settings of an Inventory.
type Options struct {
	// Name is the driver's name, for logs and metrics.
	Name   string
	Driver driver.Driver
	Clock  clock.WithTicker
	Log    logr.Logger
	// ListPeriod is the time from one complete list to the next (30 s).
	ListPeriod time.Duration
	// UsagePeriod is the time from one usage sample to the next (30 s).
	UsagePeriod time.Duration
	// CallTimeout bounds every List and Usage (30 s).
	CallTimeout time.Duration
	// Leads reads live whether this process still leads, after the engine has
	// refused it. It is nil for a process that acts without an election.
	Leads func(context.Context) (bool, error)
	// Refused, if not nil, is called each time an engine begins to refuse this
	// process although it leads.
	Refused func(cause error)
}

// Inventory caches the servers of one driver. It is safe for concurrent use.
type Inventory struct {
	Options
	id driver.Identifier

	mu        sync.Mutex
	known     bool
	failed    bool // the engine became unreachable since it was last known
	engineID  string
	met       uint64 // seq when that engine replaced another
	began     time.Time
	downSince time.Time
	backSince time.Time
	cause     error
	seq       uint64
	entries   map[types.UID]*entry
	marked    map[types.UID]bool // entries to look at, so that no search of all is needed
	notify    []func(Change)

	fence *fence // nil while the engine admits this process; guarded by mu

	fenced    chan struct{} // fence was set
	exchanged chan struct{} // another engine replaced the known one
	dirty     chan struct{} // a look at the marked entries was requested
	suspect   chan struct{} // a call found the engine failing
}

// entry is what is known about one UID. It outlives the server while an action is
// under way or a creation is unsettled.
type entry struct {
	servers        []driver.Server
	touched        uint64 // seq of the last action's begin or end
	asOf           uint64 // seq at the begin of the list that servers come from
	busy           int    // actions under way
	look           bool   // the engine named this UID since the last look at it
	settlesAt      time.Time
	sample         driver.Usage
	rates          *Rates
	publishedRates Rates // the rates of the last Change
}

var errNotListed = errors.New("the engine has not been listed yet")

// New returns an Inventory. Start runs it.
func New(o Options) (*Inventory, error) {
	id, ok := driver.As[driver.Identifier](o.Driver)
	if !ok {
		return nil, errors.New("driver " + o.Name + " does not tell its engine's id")
	}
	setDefault(&o.ListPeriod, 30*time.Second)
	setDefault(&o.UsagePeriod, 30*time.Second)
	setDefault(&o.CallTimeout, 30*time.Second)
	if o.Leads == nil {
		o.Leads = func(context.Context) (bool, error) { return true, nil }
	}
	return &Inventory{
		Options: o, id: id, began: o.Clock.Now(), cause: errNotListed,
		entries: map[types.UID]*entry{}, marked: map[types.UID]bool{},
		fenced: make(chan struct{}, 1), exchanged: make(chan struct{}, 1), dirty: make(chan struct{}, 1), suspect: make(chan struct{}, 1),
	}, nil
}

func setDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// Subscribe registers fn for every change that was not made by an action of this
// process. The inventory calls fn from its own goroutines, so fn must not block.
func (i *Inventory) Subscribe(fn func(Change)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.notify = append(i.notify, fn)
}

// Get returns the answer from the cache.
func (i *Inventory) Get(uid types.UID) Observation {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.observe(uid)
}

func (i *Inventory) observe(uid types.UID) Observation {
	o := Observation{EngineID: i.engineID, BackSince: i.backSince}
	e := i.entries[uid]
	if e != nil {
		o.SettlesAt, o.Rates = e.settlesAt, e.rates
	}
	switch {
	case !i.known:
		o.DownSince, o.Cause = i.downSince, i.cause
	case i.fence != nil && i.fence.shown:
		o.Fenced, o.DownSince, o.Cause = true, i.fence.since, i.fence.cause
	case e == nil || len(e.servers) == 0:
		o.Answer = Gone
	default:
		o.Answer, o.Server = Present, e.servers[0]
		o.Duplicates = ids(e.servers)
	}
	return o
}

// withServers returns the UIDs that have servers. known is false while the servers
// are unknown.
func (i *Inventory) withServers() (uids []types.UID, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	uids = make([]types.UID, 0, len(i.entries))
	for uid, e := range i.entries {
		if len(e.servers) > 0 {
			uids = append(uids, uid)
		}
	}
	return uids, i.known
}

// ids returns the servers' IDs if there are several.
func ids(servers []driver.Server) []string {
	if len(servers) < 2 {
		return nil
	}
	out := make([]string, len(servers))
	for n, s := range servers {
		out[n] = s.ID
	}
	return out
}

// Look asks the engine about one UID, live. The answer counts, and enters the
// cache, once the engine has confirmed that it is the known one. A Look that fails
// is Unknown. If the caller's own deadline ended it, it proves nothing about the
// engine. After any other failure the loop checks the engine itself.
func (i *Inventory) Look(ctx context.Context, uid types.UID) (Observation, error) {
	answer, err := i.ask(ctx, uid)
	if err == nil {
		err = i.confirm(ctx, answer)
	}
	if err == nil {
		err = i.take(answer)
	}
	seen := i.Get(uid)
	if err != nil && seen.Answer != Unknown {
		seen = Observation{EngineID: seen.EngineID, BackSince: seen.BackSince, SettlesAt: seen.SettlesAt, DownSince: i.Clock.Now(), Cause: err}
	}
	if err != nil && ctx.Err() == nil {
		notify(i.suspect)
	}
	return seen, err
}

// confirm verifies that the engine which gave an answer is the known one. An engine
// with another id is marked unreachable at once.
func (i *Inventory) confirm(ctx context.Context, a answer) error {
	id, err := i.askID(ctx)
	if err != nil {
		return err
	}
	i.mu.Lock()
	known, met := i.engineID, i.met
	i.mu.Unlock()
	switch {
	case known == "":
		return errNotListed
	case known == id, met > a.began: // take refuses what is older than the engine
		return nil
	}
	err = fmt.Errorf("the engine changed from %s to %s", known, id)
	i.markUnreachable(err)
	return err
}

// Ensure passes spec to the driver and records the outcome. While the engine
// refuses this process it returns ErrFenced without asking the engine.
func (i *Inventory) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := i.refused(); err != nil {
		return driver.Server{}, err
	}
	began := i.begin(spec.UID)
	server, err := i.Driver.Ensure(ctx, spec)
	i.end(spec.UID, began, func(e *entry) {
		if err == nil {
			e.servers, e.settlesAt = []driver.Server{server}, time.Time{}
			e.forgetUsage()
		} else if len(e.servers) == 0 && driver.Ambiguous(err) {
			e.settlesAt = i.Clock.Now().Add(settlePeriod)
		}
	})
	i.checkAfter(err)
	return server, err
}

// Delete passes the target to the driver. Look reports the outcome. Delete returns
// ErrFenced in the same case as Ensure.
func (i *Inventory) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if err := i.refused(); err != nil {
		return err
	}
	began := i.begin(t.UID)
	err := i.Driver.Delete(ctx, t, retain)
	i.end(t.UID, began, func(*entry) {})
	i.checkAfter(err)
	return err
}

// checkAfter makes the loop check the engine at once if a call found it
// unreachable. It suspends the driver if the engine has refused a call.
func (i *Inventory) checkAfter(err error) {
	i.checkFence(err)
	if errors.Is(err, driver.ErrUnavailable) {
		notify(i.suspect)
	}
}

func (i *Inventory) begin(uid types.UID) (began uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.entry(uid)
	i.seq++
	e.busy, e.touched = e.busy+1, i.seq
	return i.seq
}

// end closes an action. What the engine reported of the UID while the action ran
// may be older or newer than its result, so the UID is looked at once more. The
// result of an action that began on another engine is not recorded.
func (i *Inventory) end(uid types.UID, began uint64, record func(*entry)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.entry(uid)
	i.seq++
	e.busy, e.touched = e.busy-1, i.seq
	if began > i.met {
		record(e)
	}
	if e.look {
		notify(i.dirty)
	}
}

func (i *Inventory) entry(uid types.UID) *entry {
	e := i.entries[uid]
	if e == nil {
		e = &entry{}
		i.entries[uid] = e
	}
	return e
}

// answer is what the engine reported of some UIDs, or of all if uids is empty.
type answer struct {
	began uint64 // seq when the engine was asked
	found map[types.UID][]driver.Server
	uids  []types.UID
}

// ask asks the engine about the named UIDs, or about all.
func (i *Inventory) ask(ctx context.Context, uids ...types.UID) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	i.mu.Lock()
	i.seq++
	began := i.seq
	i.mu.Unlock()
	servers, err := i.Driver.List(ctx, uids...)
	if err != nil {
		return answer{}, err
	}
	return answer{began, groupByUID(servers), uids}, nil
}

// errExchanged means that an answer may be another engine's.
var errExchanged = errors.New("the engine was exchanged while it was asked")

// take merges an answer into the cache and publishes the changes.
func (i *Inventory) take(a answer) error {
	changes, err := i.merge(a)
	i.publish(changes)
	return err
}

// groupByUID groups servers by UID. A retained server does not belong to its UID.
// The result shares the memory of servers: a caller that keeps a part of it must
// copy it.
func groupByUID(servers []driver.Server) map[types.UID][]driver.Server {
	found := make(map[types.UID][]driver.Server, len(servers))
	for n := range servers {
		uid := servers[n].UID
		switch {
		case servers[n].Retained:
		case found[uid] == nil:
			found[uid] = servers[n : n+1 : n+1]
		default:
			found[uid] = append(found[uid], servers[n])
		}
	}
	return found
}

// merge merges an answer into the cache. A UID keeps what it has if an action
// touched it since the query began, or if a list that began later has reported it.
func (i *Inventory) merge(a answer) ([]Change, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if a.began < i.met {
		return nil, errExchanged
	}
	if len(a.uids) == 0 {
		a.uids = i.union(a.found)
	}
	var changes []Change
	for _, uid := range a.uids {
		e := i.entry(uid)
		if e.busy == 0 && e.touched <= a.began && e.asOf <= a.began {
			e.asOf = a.began
			if c, ok := e.replace(uid, a.found[uid]); ok {
				changes = append(changes, c)
			}
		}
		i.prune(uid, e)
	}
	if i.neverKnown() {
		return nil, nil // markReachable reports all at once
	}
	return changes, nil
}

// neverKnown reports whether the engine's first list is still under way.
func (i *Inventory) neverKnown() bool { return !i.known && !i.failed && i.downSince.IsZero() }

// union returns the UIDs that are cached or found.
func (i *Inventory) union(found map[types.UID][]driver.Server) []types.UID {
	uids := make([]types.UID, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	for uid := range i.entries {
		if _, ok := found[uid]; !ok {
			uids = append(uids, uid)
		}
	}
	return uids
}

// replace stores what was found and reports whether anything changed.
func (e *entry) replace(uid types.UID, found []driver.Server) (Change, bool) {
	old := e.servers
	if len(found) > 0 {
		e.settlesAt = time.Time{}
	}
	if same(old, found) {
		return Change{}, false
	}
	e.servers = slices.Clone(found)
	e.forgetUsage()
	return Change{UID: uid, VM: nameOf(slices.Concat(found, old))}, true
}

// nameOf returns the VirtualMachine's name from the first server that has it.
func nameOf(servers []driver.Server) types.NamespacedName {
	for _, s := range servers {
		if s.Name != "" {
			return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
		}
	}
	return types.NamespacedName{}
}

// seen is the comparable part of a server: without what only Ensure reports, and
// with the text of an error in place of its identity.
type seen struct {
	driver.Server
	err string
}

func see(s driver.Server) seen {
	text := ""
	if s.Err != nil {
		text = s.Err.Error()
	}
	s.Pending, s.Refused, s.Err = nil, nil, nil
	return seen{s, text}
}

func same(a, b []driver.Server) bool {
	if len(a) != len(b) {
		return false
	}
	for n := range a {
		if !alike(&a[n], &b[n]) {
			return false
		}
	}
	return true
}

// alike compares two servers. It copies them only if something must be changed
// before the comparison.
func alike(a, b *driver.Server) bool {
	if plain(a) && plain(b) {
		return reflect.DeepEqual(a, b)
	}
	return reflect.DeepEqual(see(*a), see(*b))
}

func plain(s *driver.Server) bool { return s.Pending == nil && s.Refused == nil && s.Err == nil }

// prune drops a UID that nothing is known about.
func (i *Inventory) prune(uid types.UID, e *entry) {
	if len(e.servers) == 0 && e.busy == 0 && !e.look && !i.Clock.Now().Before(e.settlesAt) {
		delete(i.entries, uid)
	}
}

func (i *Inventory) publish(changes []Change) {
	i.mu.Lock()
	subscribers := i.notify
	i.mu.Unlock()
	for _, c := range changes {
		for _, fn := range subscribers {
			fn(c)
		}
	}
}

// notify marks a channel of capacity one without blocking.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
