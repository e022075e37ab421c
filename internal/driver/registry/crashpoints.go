// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build faults

package registry

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
)

// addCrashPoints makes every call to a driver a crash point, for test/faults.
func addCrashPoints(name string, d driver.Driver) driver.Driver {
	return &crashingDriver{Driver: d, name: name}
}

type crashingDriver struct {
	driver.Driver
	name string
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (d *crashingDriver) Unwrap() driver.Driver { return d.Driver }

// Ensure implements driver.Driver.
func (d *crashingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	crashpoint.NameObject(string(spec.UID), spec.Name)
	p := crashpoint.Begin(d.name+".Ensure", spec.Name)
	s, err := d.Driver.Ensure(ctx, spec)
	p.End()
	return s, err
}

// Delete implements driver.Driver.
func (d *crashingDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	p := crashpoint.Begin(d.name+".Delete", string(t.UID))
	err := d.Driver.Delete(ctx, t, retain)
	p.End()
	return err
}

// List implements driver.Driver.
func (d *crashingDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	object := "all"
	if len(uids) > 0 {
		object = string(uids[0])
	}
	p := crashpoint.Begin(d.name+".List", object)
	servers, err := d.Driver.List(ctx, uids...)
	for _, s := range servers {
		crashpoint.NameObject(string(s.UID), s.Name)
	}
	p.End()
	return servers, err
}

// EngineID implements driver.Identifier.
func (d *crashingDriver) EngineID(ctx context.Context) (string, error) {
	identifier, ok := driver.As[driver.Identifier](d.Driver)
	if !ok {
		return "", errors.New("it does not report its engine's id")
	}
	p := crashpoint.Begin(d.name+".EngineID", "engine")
	id, err := identifier.EngineID(ctx)
	p.End()
	return id, err
}
