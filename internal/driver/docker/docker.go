// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker runs servers as containers of a Docker Engine (20.10 or newer).
//
// Start with Ensure in ensure.go, which finds a server's container and converges
// it to the spec, one step of nextStep (plan.go) after the other. The
// other files have one concern each: create.go makes containers, power.go
// starts and stops them, fetch.go pulls images in the background, list.go and
// cache.go inspect many containers cheaply, watch.go follows the engine's
// events, errors.go maps an engine's errors to those of the contract.
//
// What a user of Docker should know:
//
//   - A container is found by its labels (names.go), never by its name. Its name
//     is <vm>.<namespace>.<first 8 of the UID>. Renaming it by hand is harmless,
//     unless the new name ends in ".retained", which marks a released server:
//     Docker allows no other mark to be added to an existing container.
//   - Server.Addresses are the addresses inside Docker's networks. A host port
//     that the engine chose changes at each start.
//   - Images are pulled without credentials. An image in a private registry has to
//     be pulled by hand; image.pullPolicy IfNotPresent then uses it.
//   - Docker cannot compare epochs. Creation is protected by unique names, other
//     changes by IDs that were looked up by UID. A leader that was deposed between
//     the lookup and the change can still make that one change.
package docker

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/moby/moby/client"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
)

// Defaults of Options.
const (
	DefaultImage       = "nginx"
	DefaultCallTimeout = 30 * time.Second
	DefaultPullStall   = 5 * time.Minute
)

// Options configure a Driver.
type Options struct {
	// ClusterID is a label of every container; containers of other clusters are
	// neither listed nor changed.
	ClusterID string
	// Image is the image of a server without image.source.
	Image string
	// Host overrides DOCKER_HOST.
	Host string
	// CallTimeout limits a call whose context has no deadline.
	CallTimeout time.Duration
	// PullStall is how long a pull may go without any progress.
	PullStall time.Duration

	Log   logr.Logger
	Clock clock.WithTicker
}

// Driver runs servers on a Docker Engine.
type Driver struct {
	Options

	host     string
	client   atomic.Pointer[client.Client]
	identity atomic.Pointer[identity]
	size     atomic.Pointer[size]
	locks    locks
	cache    cache
	stops    stops
	notes    notes
	fetches  *download.Tracker
	watches  watches
}

var (
	_ driver.Driver     = (*Driver)(nil)
	_ driver.Identifier = (*Driver)(nil)
	_ driver.Closer     = (*Driver)(nil)
)

// New returns a driver for the engine given by DOCKER_HOST, DOCKER_CERT_PATH and
// DOCKER_TLS_VERIFY. It does not connect to the engine.
func New(o Options) (*Driver, error) {
	if o.ClusterID == "" {
		return nil, fmt.Errorf("docker: a cluster id is needed")
	}
	d := &Driver{Options: o.withDefaults()}
	d.fetches = &download.Tracker{Clock: d.Clock, Stall: d.PullStall, Concurrency: download.DefaultConcurrency, Notify: d.watches.tell}
	c, err := d.newClient()
	if err != nil {
		return nil, err
	}
	d.host = c.DaemonHost()
	if strings.HasPrefix(d.host, "ssh://") {
		return nil, fmt.Errorf("DOCKER_HOST is %s: ssh is not supported, use unix:// or tcp:// with TLS, or forward the socket with ssh -L", d.host)
	}
	return d, nil
}

func (o Options) withDefaults() Options {
	if o.Image == "" {
		o.Image = DefaultImage
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.PullStall <= 0 {
		o.PullStall = DefaultPullStall
	}
	if o.Log.GetSink() == nil {
		o.Log = logr.Discard()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// Close cancels pulls that are under way and waits for them to end.
func (d *Driver) Close(ctx context.Context) error {
	err := d.fetches.Close(ctx)
	if c := d.client.Load(); c != nil {
		_ = c.Close()
	}
	return err
}
