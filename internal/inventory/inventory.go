// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// Answer says whether the engine has a server with a UID.
type Answer int

const (
	// Unknown means that the engine has not been listed completely yet, or is
	// unreachable. Nothing may be created or deleted on this answer.
	Unknown Answer = iota
	// Gone means that the engine does not have a server with this UID.
	Gone
	// Present means that the engine has a server with this UID.
	Present
)

// settlePeriod is how long the engine may still carry out a creation with an unknown outcome
// (driver.Ambiguous). Until then Gone proves nothing for a deletion. A creation is repeated
// without that wait, since Ensure is atomic on the UID. A new leader does not know of the
// creation, so it does not wait (ADR 0007 names the risk).
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

// Change notifies a subscriber of a change that may need a reconcile pass.
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
	cache  cache
	id     driver.Identifier
	fenced chan struct{} // signalled when the engine begins to refuse this process
	// Tried is closed once the engine was listed, or could not be listed. endFirstTry closes it.
	Tried       <-chan struct{}
	endFirstTry func()
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
	tried := make(chan struct{})
	return &Inventory{Options: o, id: id, fenced: make(chan struct{}, 1), Tried: tried, endFirstTry: sync.OnceFunc(func() { close(tried) }), cache: cache{
		clock: o.Clock, listingSince: o.Clock.Now(), cause: errNotListed,
		entries: map[types.UID]*entry{}, changedUIDs: map[types.UID]bool{}, held: newHolds(),
		replaced: make(chan struct{}, 1), refreshDue: make(chan struct{}, 1), checkDue: make(chan struct{}, 1),
	}}, nil
}

// Subscribe registers fn for every change that was not made by an action of this
// process. The inventory calls fn from its goroutines, so fn must not block.
func (i *Inventory) Subscribe(fn func(Change)) { i.cache.subscribe(fn) }

// Get returns the answer from the cache.
func (i *Inventory) Get(uid types.UID) Observation { return i.cache.observe(uid) }

// BeginEpoch notes that this process now leads, with this epoch. All earlier observations count as old
// from then on, since the previous leader may have changed the servers. The loop lists the engine again.
func (i *Inventory) BeginEpoch(epoch uint64) { i.cache.beginEpoch(epoch) }

// IsOld reports whether the cached answer about a UID is older than this process's leadership.
func (i *Inventory) IsOld(uid types.UID) bool { return i.cache.isOld(uid) }

// NoteRetained notes that a VirtualMachine with the deletion policy Retain is gone. Its server may not be
// released yet, if someone else has removed the finalizer. Sweep then releases the server, and does not
// remove it.
func (i *Inventory) NoteRetained(uid types.UID) { i.cache.noted.Store(uid, i.Clock.Now()) }

func setDefault(d *time.Duration, v time.Duration) {
	if *d <= 0 {
		*d = v
	}
}

// GetLive queries the engine for one UID. The result enters the cache once the engine has
// confirmed that it is the known engine. If the query fails, the returned answer is Unknown, and
// the loop checks the engine. It does not if the caller's deadline ended the query, which
// proves nothing about the engine.
func (i *Inventory) GetLive(ctx context.Context, uid types.UID) (Observation, error) {
	result, err := i.queryEngine(ctx, uid)
	if err == nil {
		err = i.confirmEngine(ctx, result.startSeq)
	}
	if err == nil {
		err = i.cache.applyResult(result)
	}
	seen := i.Get(uid)
	if err != nil && seen.Answer != Unknown { // else the cache knows since when and why
		seen = seen.asUnknown(i.Clock.Now(), err)
	}
	if err != nil && ctx.Err() == nil {
		sendSignal(i.cache.checkDue)
	}
	return seen, err
}

// asUnknown returns the observation without its answer. The facts about the engine and SettlesAt stay.
func (o Observation) asUnknown(since time.Time, cause error) Observation {
	return Observation{EngineID: o.EngineID, BackSince: o.BackSince, SettlesAt: o.SettlesAt, DownSince: since, Cause: cause}
}

// confirmEngine verifies that the known engine has answered a call, and that it was not replaced since
// the call began at startSeq. An engine with another id is marked unreachable at once.
func (i *Inventory) confirmEngine(ctx context.Context, startSeq uint64) error {
	id, err := i.readEngineID(ctx)
	if err != nil {
		return err
	}
	i.cache.mu.Lock()
	known, replacedSeq := i.cache.engineID, i.cache.replacedSeq
	i.cache.mu.Unlock()
	switch {
	case known == "":
		return errNotListed
	case replacedSeq > startSeq:
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
// succeeded once the engine has confirmed that it is the known engine. A change of the server with
// spec.ID needs no confirmation: only the known engine has this server.
func (i *Inventory) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := i.cache.fenceError(); err != nil {
		return driver.Server{}, err
	}
	startSeq := i.cache.beginAction(spec.UID)
	server, err := i.Driver.Ensure(ctx, spec)
	if err == nil && spec.ID == "" {
		err = i.confirmEngine(ctx, startSeq)
	}
	i.cache.endAction(spec.UID, startSeq, func(e *entry) { // with the lock of the cache held
		if err == nil {
			e.servers, e.asOf = []driver.Server{server}, i.cache.seq
			e.settlesAt = time.Time{}
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
	if err := i.cache.fenceError(); err != nil {
		return err
	}
	startSeq := i.cache.beginAction(t.UID)
	err := i.Driver.Delete(ctx, t, retain)
	i.cache.endAction(t.UID, startSeq, func(*entry) {})
	i.checkCallError(err)
	return err
}

// checkCallError makes the loop check the engine at once if a call found it
// unreachable. It suspends the driver if the engine has refused a call.
func (i *Inventory) checkCallError(err error) {
	i.suspendIfFenced(err)
	if errors.Is(err, driver.ErrUnavailable) {
		sendSignal(i.cache.checkDue)
	}
}

// listResult is the engine's list of the servers with some UIDs, or of all if uids is empty.
type listResult struct {
	startSeq uint64 // seq when the query began
	found    map[types.UID][]driver.Server
	uids     []types.UID
}

// queryEngine lists the servers of the named UIDs, or all.
func (i *Inventory) queryEngine(ctx context.Context, uids ...types.UID) (listResult, error) {
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	startSeq := i.cache.beginQuery()
	servers, err := i.Driver.List(ctx, uids...)
	if err != nil {
		return listResult{}, err
	}
	return listResult{startSeq, groupByUID(servers), uids}, nil
}

// errReplaced means that a result may come from the engine before.
var errReplaced = errors.New("the engine was replaced while it was queried")

// groupByUID groups servers by UID, without retained servers, which no VirtualMachine owns.
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

// sendSignal marks a channel of capacity one without blocking.
func sendSignal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
