// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"

	"cloudnative.tw/drover/internal/driver"
)

// minAPI is the API version of Docker Engine 20.10, the first with one-shot stats.
// The client library itself supports 1.40.
const minAPI = "1.41"

// newClient reads the environment. Options.Host, which tests set, overrides its
// DOCKER_HOST.
func (d *Driver) newClient() (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if d.Host != "" {
		opts = append(opts, client.WithHost(d.Host))
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("docker: %w (see DOCKER_HOST, DOCKER_CERT_PATH and DOCKER_TLS_VERIFY)", err)
	}
	return c, nil
}

// engine returns a client that has negotiated an API version with the engine. A
// client is shared only after that, and dropped when the connection is lost, because
// the engine that comes back may have another version.
func (d *Driver) engine(ctx context.Context) (*client.Client, error) {
	if c := d.client.Load(); c != nil {
		return c, nil
	}
	c, err := d.newClient()
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	if _, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		if ctx.Err() == nil && !lost(err) {
			err = driver.Errorf(driver.ErrUnavailable, "the Docker engine at %s: %w", d.host, err)
		}
		return nil, err
	}
	if versions.LessThan(c.ClientVersion(), minAPI) {
		return nil, driver.Errorf(driver.ErrUnavailable, "the Docker engine at %s speaks API %s: Drover needs %s (Docker 20.10) or newer", d.host, c.ClientVersion(), minAPI)
	}
	d.client.CompareAndSwap(nil, c)
	return c, nil
}

type call func(ctx context.Context, c *client.Client) error

// read queries the engine. A timeout means that the engine cannot be reached.
func (d *Driver) read(ctx context.Context, what string, f call) error {
	return d.do(ctx, what, false, f)
}

// change makes the engine change something. After a timeout it is unknown whether
// that was done.
func (d *Driver) change(ctx context.Context, what string, f call) error {
	return d.do(ctx, what, true, f)
}

func (d *Driver) do(ctx context.Context, what string, changes bool, f call) error {
	c, err := d.engine(ctx)
	if err != nil {
		return d.explain(what, false, err)
	}
	if err = f(ctx, c); err == nil {
		return nil
	}
	if lost(err) {
		d.drop(c)
	}
	return d.explain(what, changes, err)
}

func (d *Driver) drop(c *client.Client) {
	d.client.CompareAndSwap(c, nil)
	d.identity.Store(nil) // another engine may answer next
	_ = c.Close()
}

// bound gives ctx a deadline if it has none.
func (d *Driver) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d.CallTimeout)
}

func (d *Driver) info(ctx context.Context) (info system.Info, err error) {
	err = d.read(ctx, "ask for its properties", func(ctx context.Context, c *client.Client) error {
		res, err := c.Info(ctx, client.InfoOptions{})
		info = res.Info
		return err
	})
	if err == nil {
		d.size.Store(&size{cpus: info.NCPU, memory: info.MemTotal, at: d.Clock.Now()})
	}
	return info, err
}

// sizeAge is how long the host's size is cached. The query is expensive: the
// engine runs other programs to answer it.
const sizeAge = time.Minute

// size is the CPUs and the memory of a host.
type size struct {
	cpus   int
	memory int64 // bytes
	at     time.Time
}

// hostSize returns the host's size, from the cache if that is recent.
func (d *Driver) hostSize(ctx context.Context) (size, error) {
	if s := d.size.Load(); s != nil && d.Clock.Since(s.at) < sizeAge {
		return *s, nil
	}
	if _, err := d.info(ctx); err != nil {
		return size{}, err
	}
	return *d.size.Load(), nil
}

// identity is the engine's own id, and the id of its network "none". Every data root
// of Docker has one such network, with a random id for life. So that id proves which
// engine answers, without the cost of /info, for which the engine runs other programs.
type identity struct{ network, engine string }

// EngineID implements driver.Identifier. It queries the engine each time, because
// another one may answer at the same address.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	network, err := d.networkID(ctx)
	if err != nil {
		return "", err
	}
	if known := d.identity.Load(); known != nil && known.network == network {
		return known.engine, nil
	}
	return d.identify(ctx, network)
}

// identify caches the id only if the same engine answered before and after. An
// engine without that network, such as Podman, is queried for its id each time.
func (d *Driver) identify(ctx context.Context, network string) (string, error) {
	info, err := d.info(ctx)
	if err != nil {
		return "", err
	}
	if info.ID == "" {
		return "", driver.Errorf(driver.ErrUnavailable, "the engine at %s has no id: it may be no Docker Engine", d.host)
	}
	if network == "" {
		return info.ID, nil
	}
	after, err := d.networkID(ctx)
	if err == nil && after == network {
		d.identity.Store(&identity{network: network, engine: info.ID})
	}
	return info.ID, err
}

// networkID is empty if the engine has no network "none", or does not report it.
func (d *Driver) networkID(ctx context.Context) (id string, err error) {
	err = d.read(ctx, "look at its network none", func(ctx context.Context, c *client.Client) error {
		res, err := c.NetworkInspect(ctx, "none", client.NetworkInspectOptions{})
		id = res.Network.ID
		return err
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrUnavailable) {
		return "", nil
	}
	return id, err
}
