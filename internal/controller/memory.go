// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// factTimes records the instants of each VirtualMachine that waits for something,
// and nothing for one that does not wait.
type factTimes struct {
	mu   sync.Mutex
	byVM map[types.NamespacedName][]factTime
}

// factTime is when a fact was first observed. The fact is identified by its kind and
// by a text that changes with the fact.
type factTime struct {
	kind  factKind
	value string
	at    time.Time
	// onlyKnown leaves the fact out unless it was observed before.
	onlyKnown bool
}

type factKind int

const (
	factDeletion factKind = iota
	factOperation
	factFailure
	factRun
	factExit
)

// update returns since when the facts hold. It records new facts as of now, and
// drops those that no longer hold.
func (s *factTimes) update(vm *api.VirtualMachine, observed inventory.Observation, now time.Time) policy.Instants {
	facts := factsOf(vm, observed)
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.byVM[keyOf(vm)]
	var next []factTime
	for _, f := range facts {
		n := slices.IndexFunc(before, func(b factTime) bool { return b.kind == f.kind && b.value == f.value })
		switch {
		case n >= 0:
			f.at = before[n].at
		case f.onlyKnown:
			continue
		default:
			f.at = now
		}
		next = append(next, f)
	}
	if next != nil && s.byVM == nil {
		s.byVM = map[types.NamespacedName][]factTime{}
	}
	if next != nil {
		s.byVM[keyOf(vm)] = next
	} else if before != nil {
		delete(s.byVM, keyOf(vm))
	}
	return instantsOf(next)
}

func (s *factTimes) forgetObject(key types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byVM, key)
}

func instantsOf(facts []factTime) policy.Instants {
	var s policy.Instants
	at := map[factKind]*time.Time{
		factDeletion: &s.Deletion, factOperation: &s.Operation, factFailure: &s.Failure,
		factRun: &s.Run, factExit: &s.Exit,
	}
	for _, f := range facts {
		*at[f.kind] = f.at
	}
	return s
}

// factsOf returns the facts that a wait may count from.
func factsOf(vm *api.VirtualMachine, observed inventory.Observation) []factTime {
	var facts []factTime
	add := func(kind factKind, of ...string) {
		facts = append(facts, factTime{kind: kind, value: strings.Join(append(of, string(vm.UID)), "/")})
	}
	if vm.DeletionTimestamp != nil {
		add(factDeletion)
	}
	op := vm.Status.Operation
	if op == nil {
		return facts
	}
	began := string(op.Type) + "/" + strconv.FormatInt(op.StartedAt.UnixMicro(), 10)
	add(factOperation, began)
	if op.Attempts > 0 {
		add(factFailure, began, strconv.Itoa(int(op.Attempts)))
	}
	if op.Failure != api.FailureExited || observed.Answer != inventory.Present {
		return facts
	}
	isOver := observed.Server.State == driver.StateStopped || observed.Server.State == driver.StateStopping && observed.Server.Exit != nil
	if isOver {
		add(factExit, observed.Server.Run)
	}
	if isOver || observed.IsRunning() {
		add(factRun, observed.Server.Run)
		facts[len(facts)-1].onlyKnown = isOver
	}
	return facts
}

// ownWrites has this process's last write of each object until the cache has it,
// and what was done for an object since.
type ownWrites struct {
	mu      sync.Mutex
	written map[types.NamespacedName]*api.VirtualMachine
	// doubted are the objects whose last write the API may have lost.
	doubted map[types.NamespacedName]bool
	// reported are the last statuses that were written, answered or not.
	reported   map[types.NamespacedName]reportedStatus
	unreported map[types.NamespacedName]unreportedWork
	progress   map[types.NamespacedName]progress
}

// progress is the stage of a creation or deletion that is not written yet, and when it was
// first seen.
type progress struct {
	uid    types.UID
	reason string
	since  time.Time
}

// progressSince returns since when passes have found the stage that a status would have now,
// while the API has another one.
func (c *ownWrites) progressSince(vm *api.VirtualMachine, next *api.VirtualMachineStatus, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := keyOf(vm)
	if !isProgress(&vm.Status, next) || vm.Status.Reason == next.Reason {
		delete(c.progress, key)
		return now
	}
	if seen := c.progress[key]; seen.uid == vm.UID && seen.reason == next.Reason {
		return seen.since
	}
	if c.progress == nil {
		c.progress = map[types.NamespacedName]progress{}
	}
	c.progress[key] = progress{vm.UID, next.Reason, now}
	return now
}

// unreportedWork is what a pass did but could not write, for example after a
// conflict.
type unreportedWork struct {
	uid types.UID
	// base is the status in the API. status is the one that follows from what was
	// done.
	base, status *api.VirtualMachineStatus
	events       []pendingEvent
}

// findUnreported returns what was done for the object but is not in its status yet.
// It is nil if the status was written by another process since.
func (c *ownWrites) findUnreported(vm *api.VirtualMachine) *unreportedWork {
	c.mu.Lock()
	defer c.mu.Unlock()
	left, ok := c.unreported[keyOf(vm)]
	if !ok || left.uid != vm.UID || !equality.Semantic.DeepEqual(left.base, &vm.Status) {
		return nil
	}
	return &left
}

// storeUnreported records what the pass did, unless that was written.
func (p *reconciliation) storeUnreported() {
	c := &p.r.writes
	c.mu.Lock()
	defer c.mu.Unlock()
	if !p.unreported {
		delete(c.unreported, keyOf(p.base))
		return
	}
	status := p.vm.Status.DeepCopy()
	if server := p.serverStatus(); server != nil && p.isObserved() {
		status.Server = server
	}
	if c.unreported == nil {
		c.unreported = map[types.NamespacedName]unreportedWork{}
	}
	c.unreported[keyOf(p.base)] = unreportedWork{p.base.UID, &p.base.Status, status, p.allEvents()}
}

// newerOf returns the newer of the cached object and this process's last write.
func (c *ownWrites) newerOf(key types.NamespacedName, cached *api.VirtualMachine) *api.VirtualMachine {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.written[key]
	if own == nil {
		return cached
	}
	if own.UID == cached.UID && isFinalized(own) {
		return own // the object goes with this write, which has no version of its own
	}
	order, err := resourceversion.CompareResourceVersion(own.ResourceVersion, cached.ResourceVersion)
	if err != nil || order <= 0 || own.UID != cached.UID {
		delete(c.written, key)
		delete(c.doubted, key)
		return cached
	}
	return own.DeepCopy()
}

// recordWrite keeps an object that the API has just returned.
func (c *ownWrites) recordWrite(vm *api.VirtualMachine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written = map[types.NamespacedName]*api.VirtualMachine{}
	}
	c.written[keyOf(vm)] = vm
	delete(c.doubted, keyOf(vm))
}

// dropOutdated drops what the cache has by now.
func (c *ownWrites) dropOutdated(cached *api.VirtualMachine) {
	_ = c.newerOf(keyOf(cached), cached)
}

// doubt has the next pass verify the last write of an object, if there is one that the cache does not
// have. An event that brings nothing newer comes from a list: of an API server that is behind, or of an
// API that was restored and has lost the write.
func (c *ownWrites) doubt(old, cached *api.VirtualMachine) (doubted bool) {
	order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, old.ResourceVersion)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || order > 0 || c.written[keyOf(cached)] == nil {
		return false
	}
	if c.doubted == nil {
		c.doubted = map[types.NamespacedName]bool{}
	}
	c.doubted[keyOf(cached)] = true
	return true
}

// reportedStatus identifies a status that this process has written.
type reportedStatus struct {
	at int64 // in microseconds, as the API has it
	// digest is the digest of the status in the API's answer, and zero before the answer.
	// Then the time alone is compared, since the API may store more or less than it was sent.
	digest [sha256.Size]byte
}

// recordReport notes a status that is about to be written, or that the API has stored.
func (c *ownWrites) recordReport(vm *api.VirtualMachine, isStored bool) {
	r := reportedStatus{at: vm.Status.LastUpdateTime.UnixMicro()}
	if isStored {
		r.digest = digestOf(&vm.Status)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported == nil {
		c.reported = map[types.NamespacedName]reportedStatus{}
	}
	c.reported[keyOf(vm)] = r
}

// isForeign reports whether an event brings a status that this process has not written: that of
// a leader of before, since passes that had an older status may have found nothing to write, or
// one that was changed by hand.
func (c *ownWrites) isForeign(old, cached *api.VirtualMachine) bool {
	if equality.Semantic.DeepEqual(&old.Status, &cached.Status) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written[keyOf(cached)] != nil {
		return false // a later write of this process
	}
	own, ok := c.reported[keyOf(cached)]
	if at := cached.Status.LastUpdateTime; !ok || at == nil || at.UnixMicro() != own.at {
		return true
	}
	return own.digest != [sha256.Size]byte{} && own.digest != digestOf(&cached.Status)
}

// digestOf returns the digest of a status as the API sends it.
func digestOf(status *api.VirtualMachineStatus) [sha256.Size]byte {
	content, err := json.Marshal(status)
	if err != nil {
		content = nil // a status that came from JSON can be encoded
	}
	return sha256.Sum256(content)
}

func (c *ownWrites) isDoubted(key types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.doubted[key]
}

func (c *ownWrites) forgetObject(key types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, key)
	delete(c.doubted, key)
	delete(c.reported, key)
	delete(c.unreported, key)
	delete(c.progress, key)
}

// recordWrite keeps an object that was just written, until the cache has it. The cache may have it already,
// if the event came before the answer. It reports whether the cache has a status by now that another
// process wrote after that.
func (r *Reconciler) recordWrite(ctx context.Context, vm *api.VirtualMachine) (isOvertaken bool) {
	r.writes.recordWrite(vm)
	cached := &api.VirtualMachine{}
	if err := r.Client.Get(ctx, keyOf(vm), cached); err != nil {
		return false
	}
	r.writes.dropOutdated(cached)
	return r.writes.isForeign(vm, cached)
}

// forgetObject drops all state about an object that is gone or belongs to another
// driver.
func (r *Reconciler) forgetObject(key types.NamespacedName) {
	r.writes.forgetObject(key)
	r.probes.Forget(key)
	r.facts.forgetObject(key)
}

// keyOf returns the namespace and name of a VirtualMachine.
func keyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }
