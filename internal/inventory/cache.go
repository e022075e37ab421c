// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// cache has the knowledge of an Inventory, behind one lock: nothing in it calls the engine.
type cache struct {
	clock clock.WithTicker

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

	replaced   chan struct{} // another engine replaced the known one
	refreshDue chan struct{} // entries in changedUIDs wait for a refresh
	checkDue   chan struct{} // a call found the engine failing
}

// entry has the facts about one UID. It outlives the server while an action is
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

func (c *cache) subscribe(fn func(Change)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subscribers = append(c.subscribers, fn)
}

func (c *cache) publishChanges(changes []Change) {
	c.mu.Lock()
	subscribers := c.subscribers
	c.mu.Unlock()
	for _, change := range changes {
		for _, fn := range subscribers {
			fn(change)
		}
	}
}

func (c *cache) observe(uid types.UID) Observation {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.observationOf(uid)
}

func (c *cache) observationOf(uid types.UID) Observation {
	o := Observation{EngineID: c.engineID, BackSince: c.backSince}
	e := c.entries[uid]
	if e != nil {
		o.SettlesAt, o.Rates = e.settlesAt, e.rates
	}
	switch {
	case !c.known:
		o.DownSince, o.Cause = c.downSince, c.cause
	case c.refusal != nil && c.refusal.reported:
		o.Fenced, o.DownSince, o.Cause = true, c.refusal.since, c.refusal.cause
	case e == nil || len(e.servers) == 0:
		o.Answer = Gone
	default:
		o.Answer, o.Server = Present, e.servers[0]
		o.Duplicates = duplicateIDs(e.servers)
	}
	return o
}

func (c *cache) beginEpoch(epoch uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.epoch == epoch {
		return
	}
	c.seq++
	c.epoch, c.epochSeq = epoch, c.seq
	sendSignal(c.checkDue)
}

func (c *cache) isOld(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	asOf := c.listedSeq
	if e := c.entries[uid]; e != nil {
		asOf = e.asOf
	}
	return asOf < c.epochSeq
}

// setReachable makes the answers known, and returns how many servers are. That is to be announced unless
// only the event stream had closed, and was reopened soon.
func (c *cache) setReachable() (servers int, announce bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	wasShort := !c.failed && !c.downSince.IsZero() && c.clock.Since(c.downSince) < shortGap
	announce = !c.known && !wasShort
	c.known = true
	if c.failed {
		c.backSince = c.clock.Now()
	}
	c.failed = false
	return len(c.entries), announce
}

// setUnreachable makes the answers unknown, and reports whether an outage begins and whether its cause is
// another one than before. A closed event stream may be reopened at once, so it is not an outage yet.
func (c *cache) setUnreachable(cause error) (begins, isNewCause bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known {
		c.downSince = c.clock.Now()
	}
	c.known = false
	if errors.Is(cause, errWatchClosed) {
		if !c.failed {
			c.cause = cause
		}
		return false, false
	}
	if c.downSince.IsZero() {
		c.downSince = c.listingSince
	}
	begins, isNewCause = !c.failed, !c.failed || c.cause.Error() != cause.Error()
	c.failed, c.cause = true, cause
	return begins, isNewCause
}

// uidsWithServers returns the UIDs that have servers. known is false while the servers
// are unknown.
func (c *cache) uidsWithServers() (uids []types.UID, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, e := range c.entries {
		if len(e.servers) > 0 {
			uids = append(uids, uid)
		}
	}
	return uids, c.known
}

// noteLife is how long a note of NoteRetained is kept without a server. The server may be made
// only after its VirtualMachine is gone, by a call that had begun before.
const noteLife = 10 * time.Minute

// forgetNotes drops old notes about VirtualMachines that have left no server.
func (c *cache) forgetNotes(found map[types.UID][]driver.Server) {
	c.noted.DeleteFunc(func(uid types.UID, at time.Time) bool {
		return len(found[uid]) == 0 && c.clock.Since(at) > noteLife
	})
}

// setEngine drops all that is known of another engine, its outage included, and
// reports whether there was another one.
func (c *cache) setEngine(id string) (replaced bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.engineID == id {
		return false
	}
	replaced = c.engineID != ""
	c.known, c.engineID = false, id
	if !replaced {
		return false
	}
	sendSignal(c.replaced)
	c.seq++
	c.replacedSeq = c.seq
	c.failed, c.downSince, c.cause = false, time.Time{}, errNotListed
	c.listingSince = c.clock.Now()
	c.backSince = c.listingSince
	for uid, e := range c.entries {
		e.servers = nil
		e.forgetUsage()
		c.pruneEntry(uid, e)
	}
	return true
}

// beginQuery returns the seq of a query that begins now.
func (c *cache) beginQuery() (startSeq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	return c.seq
}

func (c *cache) beginAction(uid types.UID) (startSeq uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.entryFor(uid).busy++
	c.seq++
	return c.seq
}

// endAction closes an action. What the engine reported of the UID while the action ran
// may be older or newer than its result, so the UID is refreshed once more. The
// result of an action that began on another engine is not recorded.
func (c *cache) endAction(uid types.UID, startSeq uint64, record func(*entry)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryFor(uid)
	c.seq++
	e.busy, e.touched = e.busy-1, c.seq
	if startSeq > c.replacedSeq {
		record(e)
	}
	if e.changed {
		sendSignal(c.refreshDue)
	}
}

func (c *cache) entryFor(uid types.UID) *entry {
	e := c.entries[uid]
	if e == nil {
		e = &entry{}
		c.entries[uid] = e
	}
	return e
}

// pruneEntry drops a UID that nothing is known about.
func (c *cache) pruneEntry(uid types.UID, e *entry) {
	if len(e.servers) == 0 && e.busy == 0 && !e.changed && !c.clock.Now().Before(e.settlesAt) {
		delete(c.entries, uid)
	}
}

// applyResult merges a result into the cache and publishes the changes.
func (c *cache) applyResult(a listResult) error {
	changes, err := c.mergeResult(a)
	c.publishChanges(changes)
	return err
}

// mergeResult merges a result into the cache. A UID keeps what it has if an action
// touched it since the query began, or if a list that began later has reported it.
func (c *cache) mergeResult(a listResult) ([]Change, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.startSeq < c.replacedSeq {
		return nil, errReplaced
	}
	if len(a.uids) == 0 {
		c.listedSeq = max(c.listedSeq, a.startSeq)
		c.forgetNotes(a.found)
		c.held.forgetOld(c.clock.Now())
		a.uids = c.cachedOrFound(a.found)
	}
	var changes []Change
	for _, uid := range a.uids {
		e := c.entryFor(uid)
		if e.busy == 0 && e.touched <= a.startSeq && e.asOf <= a.startSeq {
			e.asOf = a.startSeq
			if c, ok := e.replaceServers(uid, a.found[uid]); ok {
				changes = append(changes, c)
			}
		}
		c.pruneEntry(uid, e)
	}
	if c.isFirstListing() {
		return nil, nil // markReachable reports all at once
	}
	return changes, nil
}

// isFirstListing reports whether the engine's first list is still under way.
func (c *cache) isFirstListing() bool { return !c.known && !c.failed && c.downSince.IsZero() }

// cachedOrFound returns the UIDs that are cached or found.
func (c *cache) cachedOrFound(found map[types.UID][]driver.Server) []types.UID {
	uids := make([]types.UID, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	for uid := range c.entries {
		if _, ok := found[uid]; !ok {
			uids = append(uids, uid)
		}
	}
	return uids
}

func (c *cache) markChanged(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entryFor(uid)
	e.changed, c.changedUIDs[uid] = true, true
	if e.busy == 0 {
		sendSignal(c.refreshDue)
	}
}

// takeChanged returns the changed UIDs that are to be refreshed, by call.
func (c *cache) takeChanged() [][]types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var together []types.UID
	var calls [][]types.UID
	now := c.clock.Now()
	for uid := range c.changedUIDs {
		e, until := c.entryFor(uid), c.held.until[uid]
		if e.busy > 0 || now.Before(until) {
			continue
		}
		e.changed = false
		delete(c.changedUIDs, uid)
		if until.IsZero() {
			together = append(together, uid)
		} else {
			calls = append(calls, []types.UID{uid})
		}
	}
	if len(together) > 0 {
		calls = append(calls, together)
	}
	return calls
}

// noteRefresh holds UIDs back whose refresh has failed.
func (c *cache) noteRefresh(uids []types.UID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, uid := range uids {
		c.held.noteResult(uid, err, c.clock.Now())
	}
}

// nextHoldOver returns a channel that is readable once a changed UID is held back no longer, nil if none is held
// back.
func (c *cache) nextHoldOver() <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next time.Time
	for uid := range c.changedUIDs {
		if until, ok := c.held.until[uid]; ok && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	if next.IsZero() {
		return nil
	}
	return c.clock.After(next.Sub(c.clock.Now()))
}

func (c *cache) runningUIDs() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return nil
	}
	uids := make([]types.UID, 0, len(c.entries))
	for uid, e := range c.entries {
		if len(e.servers) == 1 && hasRun(e.servers[0].State) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// recordUsage records samples. The first one of a run that began less than fresh ago counts from
// the start of the run.
func (c *cache) recordUsage(usages []driver.Usage, fresh time.Duration) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var changes []Change
	for _, u := range usages {
		e := c.entries[u.UID]
		if e == nil || len(e.servers) != 1 || e.servers[0].Run != u.Run {
			continue
		}
		if e.updateRates(u, fresh) {
			s := e.servers[0]
			vm := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
			changes = append(changes, Change{UID: u.UID, VM: vm, Routine: true})
		}
	}
	return changes
}

// fenceError returns ErrFenced while the engine refuses this process.
func (c *cache) fenceError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refusal == nil {
		return nil
	}
	return driver.Errorf(driver.ErrFenced, "nothing was done, because the engine has refused this process: %w", c.refusal.cause)
}

func (c *cache) isSuspended() bool { return c.fenceError() != nil }

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
