// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package admin is a Docker Engine as command line tools see it. Start with Open.
package admin

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// Admin implements driver.Admin.
type Admin struct {
	clusterID string
	driver    *docker.Driver
	engine    *engine.Client
}

var _ driver.Admin = (*Admin)(nil)

// Open returns the engine of the environment. It does not connect to it.
func Open(env driver.Environment) (*Admin, error) {
	d, err := docker.New(docker.Options{ClusterID: env.ClusterID, Clock: env.Clock, Log: env.Log})
	if err != nil {
		return nil, err
	}
	e, err := engine.New("", env.Clock)
	return &Admin{clusterID: env.ClusterID, driver: d, engine: e}, err
}

// Survey lists the containers as the driver does, which only reads.
func (a *Admin) Survey(ctx context.Context) (driver.Survey, error) {
	id, err := a.engine.ID(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	versions, err := a.engine.Versions(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	servers, err := a.driver.List(ctx)
	return driver.Survey{EngineID: id, Version: versions.Engine, Servers: servers}, err
}

// RemoveRetained removes a container by its ID, after it has checked that this one was
// released.
func (a *Admin) RemoveRetained(ctx context.Context, t driver.Target) error {
	if t.ID == "" {
		return driver.Errorf(driver.ErrInvalid, "a released container is named by its id")
	}
	var full string
	err := a.engine.Read(ctx, "inspect the container", func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerInspect(ctx, t.ID, client.ContainerInspectOptions{})
		in := res.Container
		if err == nil && in.Config != nil && strings.HasSuffix(in.Name, docker.RetainedSuffix) && in.ID == t.ID &&
			in.Config.Labels[docker.LabelCluster] == a.clusterID && in.Config.Labels[docker.LabelUID] == string(t.UID) {
			full = in.ID
		}
		return err
	})
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if full == "" {
		return driver.Errorf(driver.ErrNotFound, "this cluster has no released container of UID %s with id %s", t.UID, t.ID)
	}
	err = a.engine.Change(ctx, "remove the container", func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerRemove(ctx, full, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	})
	switch {
	case errdefs.IsNotFound(err):
		return nil // another caller was faster
	case errdefs.IsConflict(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}
