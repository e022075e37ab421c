// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"os"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/enginedir"
)

// Deeds that are no steps of a server. Refused is a call that the fence did not
// let through.
const (
	deedCreate  = "create"
	deedDelete  = "delete"
	deedRelease = "release"
	deedRefused = "refused"
)

// Entry is a line of the journal: what is about to be done to a server, or a call
// that was refused. Of one server, entries stand in the order in which leaders
// were let through, for they are written while its lock is held. One that is
// killed in between leaves an entry of what it did not come to do.
type Entry struct {
	At      time.Time `json:"at"`
	PID     int       `json:"pid"`
	Cluster string    `json:"cluster"`
	Epoch   uint64    `json:"epoch"`
	UID     types.UID `json:"uid"`
	Deed    string    `json:"deed"`
}

// journal is a file that several controllers share; nil is for none.
type journal struct {
	file    *enginedir.Journal
	clock   clock.PassiveClock
	cluster string
}

func openJournal(o Options) (*journal, error) {
	if o.Journal == "" {
		return nil, nil //nolint:nilnil // Nil is the answer for no journal.
	}
	f, err := enginedir.OpenJournal("the qemu driver's journal", o.Journal)
	if err != nil {
		return nil, err
	}
	return &journal{f, o.Clock, o.ClusterID}, nil
}

func (j *journal) note(t driver.Target, deed string) error {
	if j == nil {
		return nil
	}
	return j.file.Write(Entry{j.clock.Now().UTC(), os.Getpid(), j.cluster, t.Epoch, t.UID, deed})
}

// noteDelete is note, but that a journal which has no room keeps nobody from making
// some.
func (d *Driver) noteDelete(t driver.Target) error {
	err := d.journal.note(t, deedDelete)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		d.Log.Info("Machine is deleted, and that cannot be written down", "uid", t.UID, "epoch", t.Epoch, "cause", err.Error())
		return nil
	}
	return err
}
