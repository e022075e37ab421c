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

// Admin implements driver.Admin for a folder.
type Admin struct {
	*Folder

	ClusterID string
	// Program is the QEMU whose version is reported.
	Program *machine.Program
}

var _ driver.Admin = Admin{}

// Survey reads the servers from their records and run locks only. It does not query QEMU, since a
// query would also record the exit of a run that has ended.
func (a Admin) Survey(ctx context.Context) (driver.Survey, error) {
	id, err := a.dir.ID()
	if err != nil {
		return driver.Survey{}, err
	}
	servers, err := a.listServers(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	version, _ := a.Program.Version(ctx) // QEMU may not be installed any more
	return driver.Survey{EngineID: id, Version: version, Servers: servers}, a.dir.Reach()
}

func (a Admin) listServers(ctx context.Context) ([]driver.Server, error) {
	instances, err := a.host.AllInstances()
	if err != nil {
		return nil, err
	}
	var servers []driver.Server
	indexes := map[driver.Target]int{}
	for _, inst := range instances {
		if ctx.Err() != nil {
			return nil, driver.Errorf(driver.ErrUnavailable, "reading %s: %w", a.dir.Path(), ctx.Err())
		}
		s, ours, err := a.observeServer(inst)
		if err != nil {
			return nil, err
		}
		target := driver.Target{UID: s.UID, ID: s.ID}
		index, found := indexes[target]
		switch {
		case !ours:
		case found: // the server is being released, and was read in both folders
			servers[index] = s
		default:
			indexes[target] = len(servers)
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// observeServer returns a server and whether it belongs to this cluster. A server whose record cannot
// be read may belong to any cluster, and counts as this cluster's.
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
	return s, s.Err != nil || r.ClusterID == a.ClusterID, nil //nolint:nilerr // the error is in s.Err
}

// RemoveRetained ends a released machine and removes its directory. It locks the UID, so that it does
// not act in the middle of a release.
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

// findReleased returns the released server of a target, or ErrNotFound.
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

// killStrays kills QEMU processes whose directory or run lock was removed while they ran. Their
// paths come from the kernel, without symbolic links.
func killStrays(ctx context.Context, m machine.Machine) error {
	path, err := filepath.EvalSymlinks(m.Path)
	if err != nil {
		return fmt.Errorf("finding %s: %w", m.Path, err)
	}
	return machine.Machine{Path: path, Mark: m.Mark}.KillStrays(ctx, func(int) func() { return func() {} })
}
