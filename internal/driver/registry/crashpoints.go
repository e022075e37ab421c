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

// addCrashPoints makes every call to a driver a point at which test/faults can end the process.
func addCrashPoints(name string, d driver.Driver) driver.Driver {
	crashing := &crashingDriver{Driver: d, name: name}
	if writer, ok := driver.As[driver.FileWriter](d); ok {
		return &crashingFileWriter{crashing, writer}
	}
	return crashing
}

type crashingDriver struct {
	driver.Driver
	name string
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (d *crashingDriver) Unwrap() driver.Driver { return d.Driver }

// callDriver makes a call of a driver at a crash point. The result is empty if the call fails.
func callDriver[R any](ctx context.Context, p crashpoint.Point, do func(context.Context) (R, error)) (result R, err error) {
	err = p.Inject(func(ctx context.Context) (err error) {
		result, err = do(ctx)
		return err
	})(ctx)
	p.End()
	if err != nil {
		result = *new(R)
	}
	return result, err
}

// Ensure implements driver.Driver.
func (d *crashingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	crashpoint.NameObject(string(spec.UID), spec.Name)
	p := crashpoint.Begin(d.name+".Ensure", spec.Name)
	return callDriver(ctx, p, func(ctx context.Context) (driver.Server, error) { return d.Driver.Ensure(ctx, spec) })
}

// Delete implements driver.Driver.
func (d *crashingDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	p := crashpoint.Begin(d.name+".Delete", string(t.UID))
	_, err := callDriver(ctx, p, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.Driver.Delete(ctx, t, retain) })
	return err
}

// List implements driver.Driver.
func (d *crashingDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	object := "all"
	if len(uids) > 0 {
		object = string(uids[0])
	}
	p := crashpoint.Begin(d.name+".List", object)
	servers, err := callDriver(ctx, p, func(ctx context.Context) ([]driver.Server, error) { return d.Driver.List(ctx, uids...) })
	for _, s := range servers {
		crashpoint.NameObject(string(s.UID), s.Name)
	}
	return servers, err
}

// Usage implements driver.Driver.
func (d *crashingDriver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	p := crashpoint.Begin(d.name+".Usage", "all")
	return callDriver(ctx, p, func(ctx context.Context) ([]driver.Usage, error) { return d.Driver.Usage(ctx, uids...) })
}

// Watch implements driver.Driver.
func (d *crashingDriver) Watch(ctx context.Context) (<-chan types.UID, error) {
	return callDriver(ctx, crashpoint.Begin(d.name+".Watch", "engine"), d.Driver.Watch)
}

// EngineID implements driver.Identifier.
func (d *crashingDriver) EngineID(ctx context.Context) (string, error) {
	identifier, ok := driver.As[driver.Identifier](d.Driver)
	if !ok {
		return "", errors.New("the driver does not report its engine's id")
	}
	return callDriver(ctx, crashpoint.Begin(d.name+".EngineID", "engine"), identifier.EngineID)
}

// crashingFileWriter is a crashingDriver that writes files.
type crashingFileWriter struct {
	*crashingDriver
	writer driver.FileWriter
}

// FileRevisions implements driver.FileWriter.
func (d *crashingFileWriter) FileRevisions(ctx context.Context, uid types.UID) (map[string]string, error) {
	p := crashpoint.Begin(d.name+".FileRevisions", string(uid))
	return callDriver(ctx, p, func(ctx context.Context) (map[string]string, error) { return d.writer.FileRevisions(ctx, uid) })
}

// WriteFiles implements driver.FileWriter.
func (d *crashingFileWriter) WriteFiles(ctx context.Context, uid types.UID, mount driver.FileMount) error {
	p := crashpoint.Begin(d.name+".WriteFiles", string(uid))
	_, err := callDriver(ctx, p, func(ctx context.Context) (struct{}, error) { return struct{}{}, d.writer.WriteFiles(ctx, uid, mount) })
	return err
}
