// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package journal is a decorator that records, for tests, what leaders did to
// servers: one line of JSON for each change and for each call that the fence
// refused.
//
// Start with Wrap. A decorator alone cannot know in which order an engine admitted
// its callers. So it puts a writer into the context of each call, and the driver
// calls Record while it holds the server's lock. Record does nothing without that
// writer, and returns nothing with it: a journal never blocks, fails or changes a
// call.
package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// Action is the action that an Entry records: one of the actions below, or a driver's name
// for a step.
type Action string

// The actions that all drivers have. ActionRefused is a call that the fence refused.
const (
	ActionCreate  Action = "create"
	ActionChange  Action = "change"
	ActionDelete  Action = "delete"
	ActionRelease Action = "release"
	ActionRefused Action = "refused"
)

// Entry is a line of the journal: a change that was accepted, or a call that was
// refused. The changes of one server are in the order in which they were accepted,
// because they are written while its lock is held.
//
// They are written before the change takes effect. A process that is suspended in
// between keeps the lock, so no other process acts on the server before it goes on.
// A process that is killed in between leaves an entry whose change never happened.
// The next entry of that server shows it: Before is the state before that entry.
type Entry struct {
	At      time.Time `json:"at"`
	PID     int       `json:"pid"`
	Cluster string    `json:"cluster"`
	Epoch   uint64    `json:"epoch"`
	UID     types.UID `json:"uid"`
	Method  string    `json:"method"`
	Action  Action    `json:"deed"`
	// Before is the server before the change, and After is the server after it, if the
	// driver reports them; nil means no server, as after a release.
	Before *Snapshot `json:"had,omitempty"`
	After  *Snapshot `json:"has,omitempty"`
}

// Snapshot is the part of a server that distinguishes one server, run and state
// from another.
type Snapshot struct {
	ID    string       `json:"id"`
	Run   string       `json:"run,omitempty"`
	State driver.State `json:"state"`
}

// EntryLost is the log message for an entry that could not be written.
const EntryLost = "Journal entry lost"

// journaled is a driver with a journal.
type journaled struct {
	driver.Driver
	cluster string
	file    *os.File
	clock   clock.PassiveClock
	log     logr.Logger
}

// Wrap records the changes of d in the file at path. Several processes can share
// the file, which is created if it is missing. It must be a regular file or a
// device, because a write to a pipe waits for a reader.
func Wrap(d driver.Driver, path, cluster string, c clock.PassiveClock, log logr.Logger) (driver.Driver, error) {
	if info, err := os.Stat(path); err == nil && info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		return nil, fmt.Errorf("the journal is %s: it must be a regular file, not a pipe or socket", path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600) //nolint:gosec // The path is a flag.
	if err != nil {
		return nil, fmt.Errorf("the journal: %w", err)
	}
	return &journaled{Driver: d, cluster: cluster, file: f, clock: c, log: log}, nil
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (j *journaled) Unwrap() driver.Driver { return j.Driver }

// Ensure implements driver.Driver.
func (j *journaled) Ensure(ctx context.Context, spec driver.ServerSpec) (server driver.Server, err error) {
	err = j.recordCall(ctx, "Ensure", spec.Target, func(ctx context.Context) error {
		server, err = j.Driver.Ensure(ctx, spec)
		return err
	})
	return server, err
}

// Delete implements driver.Driver.
func (j *journaled) Delete(ctx context.Context, t driver.Target, retain bool) error {
	return j.recordCall(ctx, "Delete", t, func(ctx context.Context) error { return j.Driver.Delete(ctx, t, retain) })
}

type writerKey struct{}

// writer records what one call did.
type writer func(action Action, before, after *Snapshot)

// Record records what is about to be done to the server of a call, if there is a
// journal. The caller holds the server's lock and was admitted by the fence.
func Record(ctx context.Context, action Action, before, after *Snapshot) {
	if write, ok := ctx.Value(writerKey{}).(writer); ok {
		write(action, before, after)
	}
}

func (j *journaled) recordCall(ctx context.Context, method string, t driver.Target, do func(context.Context) error) error {
	write := writer(func(action Action, before, after *Snapshot) {
		j.writeEntry(Entry{j.clock.Now().UTC(), os.Getpid(), j.cluster, t.Epoch, t.UID, method, action, before, after})
	})
	err := do(context.WithValue(ctx, writerKey{}, write))
	if errors.Is(err, driver.ErrFenced) {
		write(ActionRefused, nil, nil)
	}
	return err
}

// writeEntry adds one line by a single write, so that lines of several processes do not
// mix.
func (j *journaled) writeEntry(e Entry) {
	line, err := json.Marshal(e)
	if j.hasPartialLine() {
		line = append([]byte{'\n'}, line...)
	}
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		j.log.Info(EntryLost, "uid", e.UID, "deed", e.Action, "epoch", e.Epoch, "cause", err.Error())
	}
}

// hasPartialLine reports whether the last line is incomplete, for example by a full disk.
// A line that another process is about to finish may be incomplete too; then there
// is an extra empty line.
func (j *journaled) hasPartialLine() bool {
	info, err := j.file.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = j.file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}
