// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/containerd/errdefs"

	"cloudnative.tw/drover/internal/driver"
)

// admin is the engine as command line tools see it.
type admin struct{ driver *Driver }

// OpenAdmin returns the engine of the environment. It does not connect to it.
func OpenAdmin(_ string, env driver.Environment) (driver.Admin, error) {
	d, err := New(Options{ClusterID: env.ClusterID, Clock: env.Clock, Log: env.Log})
	return admin{d}, err
}

// Survey lists the containers as the driver does, which only reads.
func (a admin) Survey(ctx context.Context) (driver.Survey, error) {
	id, err := a.driver.engine.ID(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	versions, err := a.driver.engine.Versions(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	servers, err := a.driver.List(ctx)
	return driver.Survey{EngineID: id, Version: versions.Engine, Servers: servers}, err
}

// RemoveRetained removes a container by its ID, after it has checked that this one was
// released.
func (a admin) RemoveRetained(ctx context.Context, t driver.Target) error {
	if t.ID == "" {
		return driver.Errorf(driver.ErrInvalid, "a released container is named by its id")
	}
	i, err := a.driver.inspectContainer(ctx, t.ID)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err != nil || !isRetained(i.name) || i.id != t.ID || i.cluster != a.driver.Options.ClusterID || i.uid != t.UID {
		return driver.Errorf(driver.ErrNotFound, "no released container of this cluster has the UID %s and the id %s", t.UID, t.ID)
	}
	if err := i.removeContainer(ctx, true); err != nil {
		return err
	}
	return a.driver.removeVolumes(ctx, t.UID)
}
