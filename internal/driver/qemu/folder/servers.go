// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
)

// Admin is a folder as an engine: it implements driver.Admin.
type Admin struct {
	*Folder

	ClusterID string
	// Program is the QEMU whose version is reported.
	Program *machine.Program
}

var _ driver.Admin = Admin{}

// Survey returns the servers by their records and their run locks: it asks no QEMU, since who
// asks first also records how a run has ended.
func (a Admin) Survey(ctx context.Context) (driver.Survey, error) {
	id, err := a.dir.ID()
	if err != nil {
		return driver.Survey{}, err
	}
	servers, err := a.listServers(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	version, _ := a.Program.Version(ctx) // machines are there without it too
	return driver.Survey{EngineID: id, Version: version, Servers: servers}, a.dir.Reach()
}

func (a Admin) listServers(ctx context.Context) ([]driver.Server, error) {
	instances, err := a.host.AllInstances()
	if err != nil {
		return nil, err
	}
	var servers []driver.Server
	places := map[driver.Target]int{}
	for _, inst := range instances {
		if ctx.Err() != nil {
			return nil, driver.Errorf(driver.ErrUnavailable, "reading %s: %w", a.dir.Path(), ctx.Err())
		}
		s, ours, err := a.observeServer(inst)
		if err != nil {
			return nil, err
		}
		target := driver.Target{UID: s.UID, ID: s.ID}
		at, met := places[target]
		switch {
		case !ours:
		case met: // it was released in between
			servers[at] = s
		default:
			places[target] = len(servers)
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// observeServer returns a server and whether it is this cluster's. One whose record cannot be read
// may be any cluster's.
func (a Admin) observeServer(inst *instance.Instance) (s driver.Server, ours bool, err error) {
	r, err := inst.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return driver.Server{}, false, nil
	}
	if err != nil && !instance.IsBroken(err) {
		return driver.Server{}, false, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	s = driver.Server{
		UID: inst.UID, ID: r.ID, Namespace: r.Namespace, Name: r.Name, Run: r.Run, StartedAt: r.StartedAt,
		State: driver.StateStopped, Retained: instance.IsRetained(inst.Machine.Path), Err: err,
	}
	if on, lockErr := inst.Machine.IsRunning(); on || lockErr != nil {
		s.State = driver.StateRunning
	}
	return s, s.Err != nil || r.ClusterID == a.ClusterID, nil //nolint:nilerr // a server that is there and broken
}

// RemoveRetained ends the machine and removes its directory. The lock of its UID keeps a
// release that is under way from being met halfway.
func (a Admin) RemoveRetained(ctx context.Context, t driver.Target) error {
	if err := record.CheckUID(t.UID); err != nil {
		return err
	}
	lock, err := a.dir.Lock(t.UID)
	if err != nil {
		return err
	}
	defer lock.Remove()
	released, err := a.findReleased(t)
	if err != nil {
		return err
	}
	if on, err := released.Machine.IsRunning(); err != nil || on {
		if err := errors.Join(err, released.Machine.Kill(ctx)); err != nil {
			return err
		}
	}
	if err := killStrays(ctx, released.Machine); err != nil {
		return err
	}
	a.host.RemoveGroup(ctx, released.CPUGroup)
	return a.dir.Explain(a.dir.Discard(released.Machine.Path))
}

// findReleased returns a server that was released.
func (a Admin) findReleased(t driver.Target) (*instance.Instance, error) {
	instances, err := a.host.AllInstances()
	if err != nil {
		return nil, err
	}
	for _, inst := range instances {
		if inst.UID != t.UID || !instance.IsRetained(inst.Machine.Path) {
			continue
		}
		s, err := inst.Load()
		switch {
		case errors.Is(err, fs.ErrNotExist), err == nil && (s.ID != t.ID || s.ClusterID != a.ClusterID):
		case err != nil:
			return nil, err
		default:
			return s, nil
		}
	}
	return nil, driver.Errorf(driver.ErrNotFound, "no released machine of this cluster has the UID %s and the id %s", t.UID, t.ID)
}

// killStrays ends QEMUs that lost their directory or the run lock in it while they ran. The
// kernel reports a path without symbolic links.
func killStrays(ctx context.Context, m machine.Machine) error {
	path, err := filepath.EvalSymlinks(m.Path)
	if err != nil {
		return fmt.Errorf("finding %s: %w", m.Path, err)
	}
	return machine.Machine{Path: path, UUID: m.UUID}.KillStrays(ctx, func(int) func() { return func() {} })
}
