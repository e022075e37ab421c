// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package recorder keeps the last records of decisions in memory while a controller runs.
//
// Start with Recorder. Record takes little time, since records are not encoded before someone reads them.
package recorder

import (
	"container/list"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// The bounds of the records in memory. There must be room for one record of each of 10,000 VirtualMachines:
// a routine pass adds a new record for a VirtualMachine that lacks one, instead of counting a repetition.
const (
	maxPerVM   = 32
	maxRecords = 16384
	maxBytes   = 32 << 20
)

// Options are the settings of a Recorder.
type Options struct {
	// Replica names this process, and Version is the version of Drover.
	Replica, Version string
	// Epoch returns the epoch of this leader, 0 on a standby.
	Epoch func() uint64
	Clock clock.Clock
	// Write, if not nil, is called with each *decisions.Record and decisions.Update, while a lock is
	// held. Only tests set it.
	Write func(record any)
}

// Recorder has the last decisions of each VirtualMachine. A nil Recorder records nothing.
type Recorder struct {
	Options
	since  time.Time
	limits limits

	mu       sync.Mutex
	sequence uint64
	dropped  uint64
	bytes    int
	oldest   *list.List // of *entry, the oldest first
	byVM     map[types.NamespacedName][]*list.Element
}

type limits struct{ perVM, records, bytes int }

// entry is a record with the facts that became known later. They are outside of the record, so that the
// record never changes.
type entry struct {
	record *decisions.Record
	later  decisions.LaterFacts
	bytes  int
}

// New returns a Recorder.
func New(o Options) *Recorder {
	return &Recorder{
		Options: o, since: o.Clock.Now(), limits: limits{maxPerVM, maxRecords, maxBytes},
		oldest: list.New(), byVM: map[types.NamespacedName][]*list.Element{},
	}
}

// Record records a decision. If the decision repeats the last decision about the VirtualMachine, it only
// counts the repetition.
func (r *Recorder) Record(in policy.Input, d policy.Decision) {
	if r == nil {
		return
	}
	record := decisions.New(in, d)
	record.Replica, record.Version = r.Replica, r.Version
	key := record.Key()
	r.mu.Lock()
	defer r.mu.Unlock()
	last := r.lastRecord(key)
	if last != nil && record.IsRepeatOf(last.record) {
		last.later.Repeats++
		last.later.Until = record.At()
		return
	}
	if last != nil && last.later.Repeats > 0 {
		r.writeUpdate(last)
	}
	r.sequence++
	kept := record // only this copy escapes to the heap, not a repetition
	kept.Sequence = r.sequence
	r.addRecord(key, &kept)
}

// Finish records the outcome of the last decision about a VirtualMachine.
func (r *Recorder) Finish(key types.NamespacedName, outcome decisions.Outcome) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.lastRecord(key); last != nil {
		last.later.Outcome = outcome
		size := len(outcome.Error)
		last.bytes, r.bytes = last.bytes+size, r.bytes+size
		r.writeUpdate(last)
	}
}

// lastRecord returns the last record of a VirtualMachine, or nil.
func (r *Recorder) lastRecord(key types.NamespacedName) *entry {
	all := r.byVM[key]
	if len(all) == 0 {
		return nil
	}
	return all[len(all)-1].Value.(*entry)
}

// addRecord adds a record, and drops old ones to stay within the limits.
func (r *Recorder) addRecord(key types.NamespacedName, record *decisions.Record) {
	e := &entry{record: record, bytes: record.Bytes()}
	if all := r.byVM[key]; len(all) >= r.limits.perVM {
		r.dropRecord(all[0])
	}
	for r.oldest.Len() > 0 && (r.oldest.Len() >= r.limits.records || r.bytes+e.bytes > r.limits.bytes) {
		r.dropRecord(r.oldest.Front())
	}
	r.bytes += e.bytes
	r.byVM[key] = append(r.byVM[key], r.oldest.PushBack(e))
	if r.Write != nil {
		r.Write(record)
	}
}

// writeUpdate writes the facts that became known after a record was made.
func (r *Recorder) writeUpdate(e *entry) {
	if r.Write != nil {
		r.Write(decisions.Update{Replica: e.record.Replica, Sequence: e.record.Sequence, Later: e.later})
	}
}

// dropRecord drops a record, which must be the oldest record of its VirtualMachine.
func (r *Recorder) dropRecord(element *list.Element) {
	e := r.oldest.Remove(element).(*entry)
	key := e.record.Key()
	r.bytes -= e.bytes
	r.dropped++
	if r.byVM[key] = r.byVM[key][1:]; len(r.byVM[key]) == 0 {
		delete(r.byVM, key)
	}
}

// History returns the recorded decisions about a VirtualMachine, and about earlier VirtualMachines of the
// same name.
func (r *Recorder) History(key types.NamespacedName) decisions.History {
	epoch := r.Epoch()
	h := decisions.History{
		Replica: r.Replica, Version: r.Version, Leads: epoch != 0, Epoch: epoch, Since: r.since.Round(0).UTC(),
		Decisions: []decisions.Record{},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	h.Dropped = r.dropped
	for _, element := range r.byVM[key] {
		e := element.Value.(*entry)
		record := *e.record
		record.LaterFacts = e.later
		h.Decisions = append(h.Decisions, record)
	}
	return h
}
