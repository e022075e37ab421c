// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"errors"
	"os"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/enginedir"
)

// Deed is what an Entry tells of.
type Deed string

// The deeds. Refused is a call that the fence did not let through.
const (
	DeedCreate  Deed = "create"
	DeedChange  Deed = "change"
	DeedDelete  Deed = "delete"
	DeedRelease Deed = "release"
	DeedRefused Deed = "refused"
)

// Entry is a line of the journal: a change that was accepted, or a call that was
// refused. Of one server, entries stand in the order in which they were
// accepted, for they are written while its lock is held.
//
// They are written before the change takes effect. A process that is halted in
// between keeps the lock, so nobody acts on the server before it goes on. One
// that is killed in between leaves an entry whose change never came to be. The
// next entry of that server tells: Had is what was there.
type Entry struct {
	At      time.Time `json:"at"`
	PID     int       `json:"pid"`
	Cluster string    `json:"cluster"`
	Epoch   uint64    `json:"epoch"`
	UID     types.UID `json:"uid"`
	Method  string    `json:"method"`
	Deed    Deed      `json:"deed"`
	// Had is the server before the change, and Has after it; nil is none, as
	// after a release.
	Had *Sketch `json:"had,omitempty"`
	Has *Sketch `json:"has,omitempty"`
}

// Sketch is as much of a Record as tells one server, run and state from another.
type Sketch struct {
	ID    string       `json:"id"`
	Run   string       `json:"run,omitempty"`
	State driver.State `json:"state"`
}

func sketch(r *Record) *Sketch {
	if r == nil || r.Retained {
		return nil
	}
	return &Sketch{ID: r.ID, Run: r.Run, State: r.State}
}

// journaled is a store that writes down what changes.
type journaled struct {
	store
	journal *enginedir.Journal
	clock   clock.PassiveClock
}

func openJournal(path string, s store, c clock.PassiveClock) (store, error) {
	j, err := enginedir.OpenJournal("the fake driver's journal", path)
	if err != nil {
		return nil, err
	}
	return &journaled{store: s, journal: j, clock: c}, nil
}

func (j *journaled) change(uid types.UID, by claim, edit func(*Record) (*Record, error)) error {
	err := j.store.change(uid, by, func(old *Record) (*Record, error) {
		had := clone(old)
		next, err := edit(old)
		if err != nil || reflect.DeepEqual(had, next) {
			return next, err
		}
		return next, j.write(uid, by, Entry{Deed: deedOf(had, next), Had: sketch(had), Has: sketch(next)})
	})
	if errors.Is(err, driver.ErrFenced) {
		_ = j.write(uid, by, Entry{Deed: DeedRefused}) // it stays refused
	}
	return err
}

func deedOf(had, next *Record) Deed {
	switch {
	case next == nil:
		return DeedDelete
	case next.Retained:
		return DeedRelease
	case had == nil:
		return DeedCreate
	}
	return DeedChange
}

func (j *journaled) write(uid types.UID, by claim, e Entry) error {
	e.At, e.PID, e.UID = j.clock.Now().UTC(), os.Getpid(), uid
	e.Cluster, e.Epoch, e.Method = by.clusterID, by.epoch, by.method
	return j.journal.Write(e)
}
