// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake/guest"
	"cloudnative.tw/drover/internal/driver/faultinject"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/kit"
)

// Name is the driver's name in the API.
const Name = "fake"

// Options configure a Driver.
type Options struct {
	// ClusterID marks the servers as this cluster's. Required.
	ClusterID string
	// Dir is the folder that holds the servers; empty means in memory.
	Dir string
	// Memory is the engine to use if Dir is empty; nil makes a new one.
	Memory *Memory
	// BootTime is how long a server is Starting.
	BootTime time.Duration
	// ShutdownTime is how long a server takes to stop after the request.
	ShutdownTime time.Duration
	// FaultsFile names faults by VirtualMachine: see package faultinject. It is read
	// again when it changes; empty means no faults.
	FaultsFile string
	// JournalFile gets a line for every change: see package journal. Empty means no journal.
	JournalFile string
	// NewName returns a unique name for a server or a run; nil means random names.
	NewName func() string
	// Clock defaults to the real one.
	Clock clock.WithTicker
	Log   logr.Logger
}

// DefaultOptions returns the options that flags can change.
func DefaultOptions() *Options { return &Options{} }

// AddFlags adds the flags of the driver.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Dir, "fake-dir", o.Dir, "fake: folder that holds one file a server, shared by all who use it; empty keeps the servers in memory")
	fs.DurationVar(&o.BootTime, "fake-boot-time", o.BootTime, "fake: how long a server takes to boot")
	fs.DurationVar(&o.ShutdownTime, "fake-shutdown-time", o.ShutdownTime, "fake: how long a server takes to stop when it is asked to")
	fs.StringVar(&o.FaultsFile, "fake-faults", o.FaultsFile, "fake: file that names faults by VirtualMachine, read when it changes")
	fs.StringVar(&o.JournalFile, "fake-journal", o.JournalFile, "fake: file to which every change of a server is appended as a line of JSON, for tests; empty means none")
	for _, forTests := range []string{"fake-boot-time", "fake-shutdown-time", "fake-faults", "fake-journal"} {
		_ = fs.MarkHidden(forTests)
	}
}

// DataDir returns the option that names the driver's folder.
func (o *Options) DataDir() *string { return &o.Dir }

// Open opens the driver in env, with its journal and its faults. The faults wrap the journal,
// because a call that a fault intercepts changes nothing.
func (o *Options) Open(env driver.Environment) (driver.Driver, error) {
	opened := *o
	opened.ClusterID, opened.Clock, opened.Log = env.ClusterID, env.Clock, env.Log
	var d driver.Driver
	d, err := New(opened)
	if err == nil && o.JournalFile != "" {
		d, err = journal.Wrap(d, o.JournalFile, env.ClusterID, env.Clock, env.Log)
	}
	if err != nil {
		return nil, err
	}
	if o.FaultsFile != "" {
		d = faultinject.Wrap(d, o.FaultsFile, env.Clock, env.Log)
	}
	return d, nil
}

// Driver simulates servers.
type Driver struct {
	*guest.Access // consoles, logs, commands and ports

	clusterID  string
	clock      clock.WithTicker
	log        logr.Logger
	simulation simulation
	store      store
	meter      meter
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.Identifier    = (*Driver)(nil)
	_ driver.FieldDeclarer = (*Driver)(nil)

	_ driver.Consoler        = (*Driver)(nil)
	_ driver.LogReader       = (*Driver)(nil)
	_ driver.Executor        = (*Driver)(nil)
	_ driver.Dialer          = (*Driver)(nil)
	_ driver.InterfaceLister = (*Driver)(nil)
)

// New returns a driver for the folder o.Dir, which New creates, or for an engine in memory.
func New(o Options) (*Driver, error) {
	if o.ClusterID == "" {
		return nil, errors.New("the fake driver needs a cluster id")
	}
	if o.BootTime < 0 || o.ShutdownTime < 0 {
		return nil, errors.New("the fake driver's boot time and shutdown time must not be negative")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.NewName == nil {
		o.NewName = newName
	}
	s, err := openStore(o)
	if err != nil {
		return nil, err
	}
	d := &Driver{
		clusterID: o.ClusterID, clock: o.Clock, log: o.Log, store: s,
		simulation: simulation{bootTime: o.BootTime, shutdownTime: o.ShutdownTime, newName: o.NewName},
	}
	d.Access = &guest.Access{Clock: o.Clock, Find: d.findGuest}
	return d, nil
}

// findGuest returns the facts of a server of this cluster that its simulated guest needs.
func (d *Driver) findGuest(ctx context.Context, uid types.UID) (guest.Server, error) {
	if err := cmp.Or(kit.CheckContext(ctx), driver.CheckUID(uid)); err != nil {
		return guest.Server{}, err
	}
	r, err := d.store.getRecord(uid)
	switch {
	case err != nil:
		return guest.Server{}, err
	case r == nil || r.ClusterID != d.clusterID:
		return guest.Server{}, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	}
	now := applyDueChanges(*r, d.clock.Now())
	s := guest.Server{UID: uid, ID: now.ID, Name: now.Name, Run: now.Run, State: now.State, MountPaths: now.MountPaths, Interface: interfaceOf(uid)}
	for _, p := range now.Ports {
		s.Ports = append(s.Ports, p.Port)
	}
	return s, nil
}

func openStore(o Options) (store, error) {
	switch {
	case o.Dir != "":
		return openDirStore(o.Dir)
	case o.Memory != nil:
		return o.Memory, nil
	}
	return NewMemory(o.Clock), nil
}

func newName() string { return string(uuid.NewUUID())[:18] }

// EngineID returns the UUID of the folder or of the engine in memory.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return "", err
	}
	return d.store.engineID()
}

// Ensure creates or changes the record of a server.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := beginChange(ctx, spec.UID); err != nil {
		return driver.Server{}, err
	}
	if strings.ContainsAny(spec.Image.Source, " \t\r\n") {
		return driver.Server{}, driver.Errorf(driver.ErrInvalid, "spec.image.source is %q: it must not contain spaces", spec.Image.Source)
	}
	now := d.clock.Now()
	var made Record
	err := d.store.changeRecord(spec.UID, leaderEpoch{d.clusterID, spec.Epoch}, journaledEdit(ctx, func(old *Record) (*Record, error) {
		r, err := d.startingRecord(old, spec)
		if err != nil {
			return nil, err
		}
		if spec.FilesErr != nil && !r.isOn() && spec.Power != driver.PowerOff {
			return nil, spec.FilesErr
		}
		made = d.simulation.applySpec(r, spec, now)
		return &made, nil
	}))
	if err != nil {
		return driver.Server{}, err
	}
	s := serverOf(made, now)
	s.Pending = pendingOf(made, spec)
	return s, nil
}

// startingRecord returns the record that Ensure changes: the old one, or a new one.
func (d *Driver) startingRecord(old *Record, spec driver.ServerSpec) (Record, error) {
	switch {
	case old != nil && old.ClusterID != d.clusterID:
		return Record{}, driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
			"the engine has a server of UID %s that is not this cluster's", spec.UID))
	case spec.ID != "" && (old == nil || old.ID != spec.ID):
		return Record{}, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s with id %s", spec.UID, spec.ID)
	case old == nil:
		return d.simulation.newRecord(d.clusterID, spec), nil
	}
	return *old, nil
}

// Delete removes the record of a server, or marks it as released.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if err := beginChange(ctx, t.UID); err != nil {
		return err
	}
	err := d.store.changeRecord(t.UID, leaderEpoch{d.clusterID, t.Epoch}, journaledEdit(ctx, func(old *Record) (*Record, error) {
		if old == nil || old.ClusterID != d.clusterID || (t.ID != "" && old.ID != t.ID) {
			return nil, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", t.UID)
		}
		guest.ForgetOutput(old.ID)
		if !retain {
			return nil, nil //nolint:nilnil // Nil removes the record.
		}
		released := *old
		released.Retained = true
		return &released, nil
	}))
	if err == nil {
		d.meter.last.Delete(t.UID)
	}
	return err
}

// journaledEdit returns an edit for changeRecord that also records the change in the journal,
// while the server's lock is held.
func journaledEdit(ctx context.Context, edit func(*Record) (*Record, error)) func(*Record) (*Record, error) {
	return func(old *Record) (*Record, error) {
		before := cloneRecord(old)
		next, err := edit(old)
		if err == nil && !reflect.DeepEqual(before, next) {
			journal.Record(ctx, actionOf(before, next), snapshotOf(before), snapshotOf(next))
		}
		return next, err
	}
}

func actionOf(before, next *Record) journal.Action {
	switch {
	case next == nil:
		return journal.ActionDelete
	case next.Retained:
		return journal.ActionRelease
	case before == nil:
		return journal.ActionCreate
	}
	return journal.ActionChange
}

func snapshotOf(r *Record) *journal.Snapshot {
	if r == nil || r.Retained {
		return nil
	}
	return &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State}
}

// List reads the records.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	records, err := d.listRecords(ctx, uids)
	if err != nil {
		return nil, err
	}
	now := d.clock.Now()
	servers := make([]driver.Server, 0, len(records))
	for _, r := range records {
		if r.ClusterID == d.clusterID {
			servers = append(servers, serverOf(r, now))
		}
	}
	return servers, nil
}

// listRecords returns the records of the UIDs, or all records if uids is empty.
func (d *Driver) listRecords(ctx context.Context, uids []types.UID) ([]Record, error) {
	uids, err := driver.UniqueUIDs(uids)
	if err != nil {
		return nil, err
	}
	return d.store.listRecords(ctx, uids...)
}

// Usage computes the simulated resource use of the servers.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if err := kit.CheckContext(ctx); err != nil || len(uids) == 0 {
		return nil, err
	}
	records, err := d.listRecords(ctx, uids)
	if err != nil {
		return nil, err
	}
	now := d.clock.Now()
	samples := make([]driver.Usage, 0, len(records))
	for _, r := range records {
		if r.ClusterID != d.clusterID {
			continue
		}
		if u, ok := d.meter.sampleUsage(applyDueChanges(r, now), now); ok {
			samples = append(samples, u)
		}
	}
	return samples, nil
}

// beginChange checks the context and the UID of a call that changes a server.
func beginChange(ctx context.Context, uid types.UID) error {
	if err := kit.CheckContext(ctx); err != nil {
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return driver.CheckUID(uid)
}
