// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
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
