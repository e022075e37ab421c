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

// settlePeriod is how long after an ambiguous creation "gone" proves nothing for a
// deletion: the engine may still carry out the creation. A creation is repeated without
// that wait, since Ensure is atomic on the UID. The period is lost with the leader
// (ADR 0007).
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
	// SettlesAt is when a Gone answer becomes reliable for a deletion: the zero time,
	// or settlePeriod after a creation with an unknown outcome.
	SettlesAt time.Time
}

// IsRunning reports whether the server's guest is running.
func (o Observation) IsRunning() bool {
	return o.Answer == Present && o.Server.State == driver.StateRunning
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
	// ConfirmLeading reads live whether this process still leads, after the engine has
	// refused it. It is nil for a process that acts without an election.
	ConfirmLeading func(context.Context) (bool, error)
	// OnFenced, if not nil, is called each time an engine begins to refuse this
	// process although it leads.
	OnFenced func(cause error)
}

// Inventory caches the servers of one driver. It is safe for concurrent use.
type Inventory struct {
	Options
	id driver.Identifier

	mu           sync.Mutex
	known        bool
	failed       bool // the engine became unreachable since it was last known
	engineID     string
	replacedSeq  uint64 // seq when that engine replaced another
	listingSince time.Time
	downSince    time.Time
	backSince    time.Time
	cause        error
	seq          uint64
	listedSeq    uint64 // seq at the begin of the last complete list
	epoch        uint64 // of this process's leadership
	epochSeq     uint64 // seq when that began
	entries      map[types.UID]*entry
	changedUIDs  map[types.UID]bool // entries to refresh, so that a refresh need not search all
	held         holds
	subscribers  []func(Change)

	noted driver.SyncMap[types.UID, time.Time] // when NoteRetained was called

	refusal *refusal // nil while the engine admits this process; guarded by mu

	fenced     chan struct{} // refusal was set
	replaced   chan struct{} // another engine replaced the known one
	refreshDue chan struct{} // entries in changedUIDs wait for a refresh
	checkDue   chan struct{} // a call found the engine failing
}

// entry is what is known about one UID. It outlives the server while an action is
// under way or a creation is unsettled.
type entry struct {
	servers        []driver.Server
	touched        uint64 // seq of the last action's end
	asOf           uint64 // seq at the begin of the list, or at the end of the call, that servers come from
	busy           int    // actions under way
	changed        bool   // the engine named this UID since its last refresh
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
		return nil, errors.New("driver " + o.Name + " does not report its engine's id")
	}
	setDefault(&o.ListPeriod, 30*time.Second)
	setDefault(&o.UsagePeriod, 30*time.Second)
	setDefault(&o.CallTimeout, 30*time.Second)
	if o.ConfirmLeading == nil {
		o.ConfirmLeading = func(context.Context) (bool, error) { return true, nil }
	}
	return &Inventory{
		Options: o, id: id, listingSince: o.Clock.Now(), cause: errNotListed,
		entries: map[types.UID]*entry{}, changedUIDs: map[types.UID]bool{}, held: newHolds(),
		fenced: make(chan struct{}, 1), replaced: make(chan struct{}, 1), refreshDue: make(chan struct{}, 1), checkDue: make(chan struct{}, 1),
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
	i.subscribers = append(i.subscribers, fn)
}

// Get returns the answer from the cache.
func (i *Inventory) Get(uid types.UID) Observation {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.observationOf(uid)
}

// BeginEpoch notes that this process leads with an epoch. What was observed before is old from
// then on, since an earlier leader may have changed it later. The loop lists the engine anew.
func (i *Inventory) BeginEpoch(epoch uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.epoch == epoch {
		return
	}
	i.seq++
	i.epoch, i.epochSeq = epoch, i.seq
	sendSignal(i.checkDue)
}

// IsOld reports whether the cached answer about a UID is older than this process's leadership.
func (i *Inventory) IsOld(uid types.UID) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	asOf := i.listedSeq
	if e := i.entries[uid]; e != nil {
		asOf = e.asOf
	}
	return asOf < i.epochSeq
}

func (i *Inventory) observationOf(uid types.UID) Observation {
	o := Observation{EngineID: i.engineID, BackSince: i.backSince}
	e := i.entries[uid]
	if e != nil {
		o.SettlesAt, o.Rates = e.settlesAt, e.rates
	}
	switch {
	case !i.known:
		o.DownSince, o.Cause = i.downSince, i.cause
	case i.refusal != nil && i.refusal.reported:
		o.Fenced, o.DownSince, o.Cause = true, i.refusal.since, i.refusal.cause
	case e == nil || len(e.servers) == 0:
		o.Answer = Gone
	default:
		o.Answer, o.Server = Present, e.servers[0]
		o.Duplicates = duplicateIDs(e.servers)
	}
	return o
}

// noteLife is how long a note of NoteRetained is kept without a server. The server may be made
// only after its VirtualMachine is gone, by a call that had begun before.
const noteLife = 10 * time.Minute

// NoteRetained notes that a VirtualMachine is gone whose server was to be retained. If the
// server was not released, because the finalizer had been removed by others, the sweep
// releases it in place of removing it.
func (i *Inventory) NoteRetained(uid types.UID) { i.noted.Store(uid, i.Clock.Now()) }

// forgetNotes drops old notes about VirtualMachines that have left no server.
func (i *Inventory) forgetNotes(found map[types.UID][]driver.Server) {
	i.noted.DeleteFunc(func(uid types.UID, at time.Time) bool {
		return len(found[uid]) == 0 && i.Clock.Since(at) > noteLife
	})
}

// toRetain returns the UIDs of what was noted.
func (i *Inventory) toRetain() []types.UID { return i.noted.Keys() }

// uidsWithServers returns the UIDs that have servers. known is false while the servers
// are unknown.
func (i *Inventory) uidsWithServers() (uids []types.UID, known bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for uid, e := range i.entries {
		if len(e.servers) > 0 {
			uids = append(uids, uid)
		}
	}
	return uids, i.known
}

// duplicateIDs returns the servers' IDs if there are several.
func duplicateIDs(servers []driver.Server) []string {
	if len(servers) < 2 {
		return nil
	}
	out := make([]string, len(servers))
	for n, s := range servers {
		out[n] = s.ID
	}
	return out
}

// GetLive queries the engine for one UID. The answer counts, and enters the cache, once
// the engine has confirmed that it is the known one. The answer of a call that fails is
// Unknown. If the caller's own deadline ended it, it proves nothing about the engine.
// After any other failure the loop checks the engine itself.
func (i *Inventory) GetLive(ctx context.Context, uid types.UID) (Observation, error) {
	result, err := i.queryEngine(ctx, uid)
	if err == nil {
		err = i.confirmEngine(ctx, result.began)
	}
	if err == nil {
		err = i.applyResult(result)
	}
	seen := i.Get(uid)
	if err != nil && seen.Answer != Unknown {
		seen = Observation{EngineID: seen.EngineID, BackSince: seen.BackSince, SettlesAt: seen.SettlesAt, DownSince: i.Clock.Now(), Cause: err}
	}
	if err != nil && ctx.Err() == nil {
		sendSignal(i.checkDue)
	}
	return seen, err
}

// confirmEngine verifies that the engine which gave an answer is the known one, and that it is
// the one that was known when the call began. An engine with another id is marked unreachable
// at once.
func (i *Inventory) confirmEngine(ctx context.Context, began uint64) error {
	id, err := i.readEngineID(ctx)
	if err != nil {
		return err
	}
	i.mu.Lock()
	known, replacedSeq := i.engineID, i.replacedSeq
	i.mu.Unlock()
	switch {
	case known == "":
		return errNotListed
	case replacedSeq > began:
		return errReplaced
	case known == id:
		return nil
	}
	err = fmt.Errorf("the engine changed from %s to %s", known, id)
	i.markUnreachable(err)
	return err
}

// Ensure passes spec to the driver and records the outcome. While the engine
// refuses this process it returns ErrFenced without a call to the engine. A creation has
// succeeded once the engine has confirmed that it is the known one: any engine can create a
// server, and none but the known one can have the server that a target names.
func (i *Inventory) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := i.fenceError(); err != nil {
		return driver.Server{}, err
	}
	began := i.beginAction(spec.UID)
	server, err := i.Driver.Ensure(ctx, spec)
	if err == nil && spec.ID == "" {
		err = i.confirmEngine(ctx, began)
	}
	i.endAction(spec.UID, began, func(e *entry) {
		if err == nil {
			e.servers, e.asOf, e.settlesAt = []driver.Server{server}, i.seq, time.Time{}
			e.forgetUsage()
		} else if len(e.servers) == 0 && driver.Ambiguous(err) {
			e.settlesAt = i.Clock.Now().Add(settlePeriod)
		}
	})
	i.checkCallError(err)
	return server, err
}

// Delete passes the target to the driver. GetLive reports the outcome. Delete returns
// ErrFenced in the same case as Ensure.
func (i *Inventory) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if err := i.fenceError(); err != nil {
		return err
	}
	began := i.beginAction(t.UID)
	err := i.Driver.Delete(ctx, t, retain)
	i.endAction(t.UID, began, func(*entry) {})
	i.checkCallError(err)
	return err
}

// checkCallError makes the loop check the engine at once if a call found it
// unreachable. It suspends the driver if the engine has refused a call.
func (i *Inventory) checkCallError(err error) {
	i.suspendIfFenced(err)
	if errors.Is(err, driver.ErrUnavailable) {
		sendSignal(i.checkDue)
	}
}

func (i *Inventory) beginAction(uid types.UID) (began uint64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.entryFor(uid).busy++
	i.seq++
	return i.seq
}

// endAction closes an action. What the engine reported of the UID while the action ran
// may be older or newer than its result, so the UID is refreshed once more. The
// result of an action that began on another engine is not recorded.
func (i *Inventory) endAction(uid types.UID, began uint64, record func(*entry)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	e := i.entryFor(uid)
	i.seq++
	e.busy, e.touched = e.busy-1, i.seq
	if began > i.replacedSeq {
		record(e)
	}
	if e.changed {
		sendSignal(i.refreshDue)
	}
}

func (i *Inventory) entryFor(uid types.UID) *entry {
	e := i.entries[uid]
	if e == nil {
		e = &entry{}
		i.entries[uid] = e
	}
	return e
}

// listResult is what the engine reported for some UIDs, or for all if uids is empty.
type listResult struct {
	began uint64 // seq when the query began
	found map[types.UID][]driver.Server
	uids  []types.UID
}

// queryEngine lists the servers of the named UIDs, or all.
func (i *Inventory) queryEngine(ctx context.Context, uids ...types.UID) (listResult, error) {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	i.mu.Lock()
	i.seq++
	began := i.seq
	i.mu.Unlock()
	servers, err := i.Driver.List(ctx, uids...)
	if err != nil {
		return listResult{}, err
	}
	return listResult{began, groupByUID(servers), uids}, nil
}

// errReplaced means that a result may come from the engine before.
var errReplaced = errors.New("the engine was replaced while it was queried")

// applyResult merges a result into the cache and publishes the changes.
func (i *Inventory) applyResult(a listResult) error {
	changes, err := i.mergeResult(a)
	i.publishChanges(changes)
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

// mergeResult merges a result into the cache. A UID keeps what it has if an action
// touched it since the query began, or if a list that began later has reported it.
func (i *Inventory) mergeResult(a listResult) ([]Change, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if a.began < i.replacedSeq {
		return nil, errReplaced
	}
	if len(a.uids) == 0 {
		i.listedSeq = max(i.listedSeq, a.began)
		i.forgetNotes(a.found)
		i.held.forgetOld(i.Clock.Now())
		a.uids = i.cachedOrFound(a.found)
	}
	var changes []Change
	for _, uid := range a.uids {
		e := i.entryFor(uid)
		if e.busy == 0 && e.touched <= a.began && e.asOf <= a.began {
			e.asOf = a.began
			if c, ok := e.replaceServers(uid, a.found[uid]); ok {
				changes = append(changes, c)
			}
		}
		i.pruneEntry(uid, e)
	}
	if i.isFirstListing() {
		return nil, nil // markReachable reports all at once
	}
	return changes, nil
}

// isFirstListing reports whether the engine's first list is still under way.
func (i *Inventory) isFirstListing() bool { return !i.known && !i.failed && i.downSince.IsZero() }

// cachedOrFound returns the UIDs that are cached or found.
func (i *Inventory) cachedOrFound(found map[types.UID][]driver.Server) []types.UID {
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

// replaceServers stores what was found and reports whether anything changed.
func (e *entry) replaceServers(uid types.UID, found []driver.Server) (Change, bool) {
	old := e.servers
	if len(found) > 0 {
		e.settlesAt = time.Time{}
	}
	if equalServers(old, found) {
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

// comparableServer is the comparable part of a server: without what only Ensure
// reports, and with the text of an error in place of its identity.
type comparableServer struct {
	driver.Server
	err string
}

func toComparable(s driver.Server) comparableServer {
	text := ""
	if s.Err != nil {
		text = s.Err.Error()
	}
	s.Pending, s.Refused, s.Err = nil, nil, nil
	return comparableServer{s, text}
}

func equalServers(a, b []driver.Server) bool {
	if len(a) != len(b) {
		return false
	}
	for n := range a {
		if !equalServer(&a[n], &b[n]) {
			return false
		}
	}
	return true
}

// equalServer compares two servers. It copies them only if something must be changed
// before the comparison.
func equalServer(a, b *driver.Server) bool {
	if isComparable(a) && isComparable(b) {
		return reflect.DeepEqual(a, b)
	}
	return reflect.DeepEqual(toComparable(*a), toComparable(*b))
}

func isComparable(s *driver.Server) bool { return s.Pending == nil && s.Refused == nil && s.Err == nil }

// pruneEntry drops a UID that nothing is known about.
func (i *Inventory) pruneEntry(uid types.UID, e *entry) {
	if len(e.servers) == 0 && e.busy == 0 && !e.changed && !i.Clock.Now().Before(e.settlesAt) {
		delete(i.entries, uid)
	}
}

func (i *Inventory) publishChanges(changes []Change) {
	i.mu.Lock()
	subscribers := i.subscribers
	i.mu.Unlock()
	for _, c := range changes {
		for _, fn := range subscribers {
			fn(c)
		}
	}
}

// sendSignal marks a channel of capacity one without blocking.
func sendSignal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
