// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"io"
	"io/fs"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// Console implements driver.Consoler.
func (d *Driver) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := d.findAttachable(ctx, uid)
	if err != nil {
		return nil, err
	}
	c, err := s.OpenConsole(ctx)
	if err != nil {
		return nil, contractError(err)
	}
	return console{c}, nil
}

// console is a machine's console, with the errors of the contract.
type console struct{ *machine.Console }

// Write implements io.Writer.
func (c console) Write(p []byte) (int, error) {
	n, err := c.Console.Write(p)
	return n, contractError(err)
}

// findAttachable returns a server that currently has a console.
func (d *Driver) findAttachable(ctx context.Context, uid types.UID) (*instance, error) {
	if err := checkContext(ctx); err != nil {
		return nil, err
	}
	if err := checkUID(uid); err != nil {
		return nil, err
	}
	if err := d.dir.Reach(); err != nil {
		return nil, err
	}
	s, err := d.instanceOf(uid).observe(ctx)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (s.ClusterID != d.ClusterID || s.Retained):
		return nil, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	case isBroken(err):
		return nil, driver.Errorf(driver.ErrRetry, "%w", err)
	case err != nil:
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	case !s.isAlive():
		return nil, driver.Errorf(driver.ErrRetry, "the server %s does not run, and has no console", uid)
	}
	return s, nil
}
