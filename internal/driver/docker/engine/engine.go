// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine calls a Docker Engine that may become unreachable, restart with
// another version, or be replaced by another engine at the same address.
//
// Start with Client. Its methods Read and Change give the errors of Docker's client library
// the kinds of package driver (errors.go), and ID identifies the engine that answers
// (identity.go).
package engine

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
	"github.com/moby/moby/client/pkg/versions"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
)

// minAPIVersion is the API version of Docker Engine 20.10, the first version with one-shot
// stats. The client library itself supports 1.40.
const minAPIVersion = "1.41"

// machineTTL is how long the description of the engine's host is cached. The query is
// expensive, since the engine runs other programs to answer it.
const machineTTL = time.Minute

// Client is a connection to an engine. It is safe for concurrent use.
type Client struct {
	host    string // overrides DOCKER_HOST if it is set
	address string
	clock   clock.PassiveClock

	connected atomic.Pointer[client.Client]
	identity  atomic.Pointer[identity]
	machine   atomic.Pointer[Machine]
}

// Machine is an engine's host.
type Machine struct {
	CPUs                          int
	Memory                        int64 // bytes
	Name, Kernel, OperatingSystem string
	LogDriver                     string // the default of new containers

	readAt time.Time
}

// New returns a client for the engine that DOCKER_HOST, DOCKER_CERT_PATH and
// DOCKER_TLS_VERIFY name. A host that is not empty overrides DOCKER_HOST. New does not
// connect to the engine.
func New(host string, c clock.PassiveClock) (*Client, error) {
	e := &Client{host: host, clock: c}
	unconnected, err := e.newClient()
	if err != nil {
		return nil, err
	}
	e.address = unconnected.DaemonHost()
	if strings.HasPrefix(e.address, "ssh://") {
		return nil, fmt.Errorf("DOCKER_HOST is %s: ssh is not supported, use unix:// or tcp:// with TLS, or forward the socket with ssh -L", e.address)
	}
	return e, nil
}

func (e *Client) newClient() (*client.Client, error) {
	opts := []client.Opt{client.FromEnv}
	if e.host != "" {
		opts = append(opts, client.WithHost(e.host))
	}
	c, err := client.New(opts...)
	if err != nil {
		return nil, fmt.Errorf("docker: %w (see DOCKER_HOST, DOCKER_CERT_PATH and DOCKER_TLS_VERIFY)", err)
	}
	return c, nil
}

// Address returns the engine's address, such as unix:///var/run/docker.sock.
func (e *Client) Address() string { return e.address }

// Close closes the connection.
func (e *Client) Close() {
	if c := e.connected.Load(); c != nil {
		_ = c.Close()
	}
}

// connectEngine returns a client that has negotiated an API version with the engine. Only such a
// client is shared. It is dropped when the connection is lost, because the engine that answers
// next may have another version.
func (e *Client) connectEngine(ctx context.Context) (*client.Client, error) {
	if c := e.connected.Load(); c != nil {
		return c, nil
	}
	c, err := e.newClient()
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	if _, err := c.Ping(ctx, client.PingOptions{NegotiateAPIVersion: true}); err != nil {
		if ctx.Err() == nil && !IsConnectionLost(err) {
			err = driver.Errorf(driver.ErrUnavailable, "the Docker engine at %s: %w", e.address, err)
		}
		return nil, err
	}
	if versions.LessThan(c.ClientVersion(), minAPIVersion) {
		return nil, driver.Errorf(driver.ErrUnavailable, "the Docker engine at %s supports API %s: Drover needs %s (Docker 20.10) or newer", e.address, c.ClientVersion(), minAPIVersion)
	}
	e.connected.CompareAndSwap(nil, c)
	return c, nil
}

// Call is one call to the engine.
type Call func(ctx context.Context, c *client.Client) error

// Read makes a call that changes no container, such as a query or the creation of an exec. A timeout means
// that the engine cannot be reached. Errors begin with the action, such as "list containers".
func (e *Client) Read(ctx context.Context, action string, call Call) error {
	point := crashpoint.Begin("docker read", action)
	err := e.invokeCall(ctx, action, false, point, call)
	point.End()
	return err
}

// Change makes a call that changes something. After a timeout it is unknown whether the
// engine has made the change.
func (e *Client) Change(ctx context.Context, action string, call Call) error {
	point := crashpoint.Begin("docker", action)
	err := e.invokeCall(ctx, action, true, point, call)
	point.End()
	return err
}

func (e *Client) invokeCall(ctx context.Context, action string, isChange bool, point crashpoint.Point, call Call) error {
	c, err := e.connectEngine(ctx)
	if err != nil {
		return e.explainError(action, false, err)
	}
	if err = point.Inject(func(ctx context.Context) error { return call(ctx, c) })(ctx); err == nil {
		return nil
	}
	if ctx.Err() != nil && !IsContextError(err) { // the cause may be io.EOF, which looks like a lost connection
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	if IsConnectionLost(err) {
		e.disconnect(c)
	}
	return e.explainError(action, isChange, err)
}

func (e *Client) disconnect(c *client.Client) {
	e.connected.CompareAndSwap(c, nil)
	e.identity.Store(nil) // another engine may answer next
	_ = c.Close()
}

// Versions has the version of an engine, and the API version that was negotiated with it.
type Versions struct{ Engine, API string }

// Versions returns the versions of the engine that answers.
func (e *Client) Versions(ctx context.Context) (v Versions, err error) {
	err = e.Read(ctx, "read the engine's version", func(ctx context.Context, c *client.Client) error {
		res, err := c.ServerVersion(ctx, client.ServerVersionOptions{})
		v = Versions{Engine: res.Version, API: c.ClientVersion()}
		return err
	})
	return v, err
}

// SystemTime returns the time by the engine's clock, in the engine's format.
func (e *Client) SystemTime(ctx context.Context) (string, error) {
	info, err := e.readInfo(ctx)
	return info.SystemTime, err
}

// Machine returns the engine's host, at most machineTTL old.
func (e *Client) Machine(ctx context.Context) (Machine, error) {
	if cached := e.machine.Load(); cached != nil && e.clock.Since(cached.readAt) < machineTTL {
		return *cached, nil
	}
	if _, err := e.readInfo(ctx); err != nil {
		return Machine{}, err
	}
	return *e.machine.Load(), nil
}

func (e *Client) readInfo(ctx context.Context) (info system.Info, err error) {
	err = e.Read(ctx, "read the engine's properties", func(ctx context.Context, c *client.Client) error {
		res, err := c.Info(ctx, client.InfoOptions{})
		info = res.Info
		return err
	})
	if err == nil {
		e.machine.Store(&Machine{
			CPUs: info.NCPU, Memory: info.MemTotal, Name: info.Name, Kernel: info.KernelVersion,
			OperatingSystem: info.OperatingSystem, LogDriver: info.LoggingDriver, readAt: e.clock.Now(),
		})
	}
	return info, err
}

// Inspect returns a container, or an error for which errdefs.IsNotFound is true if it does not exist.
func (e *Client) Inspect(ctx context.Context, id string) (in container.InspectResponse, err error) {
	err = e.Read(ctx, "inspect container "+ShortID(id), func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		in = res.Container
		return err
	})
	return in, err
}

// HasImage reports whether the engine has an image.
func (e *Client) HasImage(ctx context.Context, image string) (bool, error) {
	err := e.Read(ctx, "inspect image "+image, func(ctx context.Context, c *client.Client) error {
		_, err := c.ImageInspect(ctx, image)
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// ParseTime parses a time of Docker's API. It returns zero for the year 1, with which Docker marks an absent time.
func ParseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
}

// ShortID returns the beginning of a container's ID, as docker ps prints it.
func ShortID(id string) string { return id[:min(len(id), 12)] }
