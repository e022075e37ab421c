// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

// Console implements driver.Consoler.
func (d *Driver) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := d.findAttachable(ctx, uid)
	if err != nil {
		return nil, err
	}
	c, err := s.OpenConsole(ctx)
	if err != nil {
		return nil, instance.ContractError(err)
	}
	return console{c}, nil
}

// console is a machine's console, with the errors of the contract.
type console struct{ *machine.Console }

// Write implements io.Writer.
func (c console) Write(p []byte) (int, error) {
	n, err := c.Console.Write(p)
	return n, instance.ContractError(err)
}

// findAttachable returns a server that currently has a console.
func (d *Driver) findAttachable(ctx context.Context, uid types.UID) (*instance.Instance, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if err := instance.CheckUID(uid); err != nil {
		return nil, err
	}
	if err := d.StateDir.Reach(); err != nil {
		return nil, err
	}
	s, err := d.InstanceOf(uid).Observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (s.ClusterID != d.ClusterID || s.Retained):
		return nil, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	case instance.IsBroken(err):
		return nil, driver.Errorf(driver.ErrRetry, "%w", err)
	case err != nil:
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	case !s.IsAlive():
		return nil, driver.Errorf(driver.ErrRetry, "the server %s does not run, and has no console", uid)
	}
	return s, nil
}

// Probe implements driver.Prober, by way of the host port that leads to the guest's.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	h, f, err := d.forwardTo(uid, port)
	if err != nil {
		return err
	}
	return h.Probe(ctx, d.Clock, f)
}

// forwardTo returns the forward that leads to a TCP port of a guest.
func (d *Driver) forwardTo(uid types.UID, port int32) (*instance.Instance, launch.Forward, error) {
	if err := instance.CheckUID(uid); err != nil {
		return nil, launch.Forward{}, err
	}
	h := d.InstanceOf(uid)
	r, err := h.Load()
	if err != nil {
		return h, launch.Forward{}, err
	}
	n := slices.IndexFunc(r.Forwards, func(f launch.Forward) bool { return f.Protocol == "tcp" && f.Port == port })
	if n < 0 {
		return h, launch.Forward{}, fmt.Errorf("tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return h, r.Forwards[n], nil
}

// Usage returns what the machines' processes have used, and the memory use that their
// guests report.
func (d *Driver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if len(uids) == 0 {
		return nil, checkContext(ctx)
	}
	servers, err := d.observeServers(ctx, uids)
	if err != nil {
		return nil, err
	}
	servers = slices.DeleteFunc(servers, func(s *instance.Instance) bool { return !s.IsAlive() || s.Phase != record.PhaseOn })
	samples, errs := make([]driver.Usage, len(servers)), make([]error, len(servers))
	var all errgroup.Group
	all.SetLimit(maxConcurrent)
	for i := range servers {
		all.Go(func() error {
			samples[i], errs[i] = d.sampleUsage(ctx, servers[i])
			return nil
		})
	}
	_ = all.Wait()
	found := samples[:0]
	for i, u := range samples {
		if errs[i] == nil { // else it has ended meanwhile
			found = append(found, u)
		}
	}
	return found, nil
}

func (d *Driver) sampleUsage(ctx context.Context, inst *instance.Instance) (driver.Usage, error) {
	process, err := proc.ReadUsage(inst.PID())
	if err != nil {
		return driver.Usage{}, err
	}
	u := driver.Usage{UID: inst.UID, Run: inst.Run, At: d.Clock.Now(), CPU: process.CPU, MemoryBytes: process.MemoryBytes}
	if inst.QueryErr == nil {
		if used, ok := inst.GuestMemory(ctx, u.At, inst.IsPaused()); ok {
			u.MemoryBytes = used
		}
	}
	u.MemoryBytes = min(u.MemoryBytes, inst.Settings.MemoryBytes)
	return u, nil
}
