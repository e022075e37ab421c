// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package docker runs servers as containers of a Docker Engine (20.10 or newer).
//
// Start with Ensure in ensure.go, whose phases are a file each: instance.go finds a server's
// container and reads its inspection, spec.go checks the spec, create.go makes a
// container, with pull.go for its image, and converge.go takes it to the spec, one step of
// nextStep after the other. The other files have one concern each: delete.go removes
// containers, list.go inspects many cheaply, usage.go samples them, watch.go follows the
// engine's events, and admin.go is the engine as command line tools see it. Package engine is
// the connection to the engine, package pull classifies what goes wrong with an image, and
// package guest reaches into containers: console, logs, commands, connections.
//
// What a user of Docker should know:
//
//   - A container is found by its labels (spec.go), never by its name. Its name
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
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/docker/guest"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/driver/kit"
)

// Name is the driver's name in the API.
const Name = "docker"

// Defaults of Options.
const (
	DefaultImage     = "nginx"
	DefaultPullStall = 5 * time.Minute
	// DefaultPIDs keeps a fork bomb from the host, and is more than servers of a small host need.
	DefaultPIDs = 4096
	// DefaultLogSize and DefaultLogFiles are the kubelet's.
	DefaultLogSize  = "10Mi"
	DefaultLogFiles = 5
)

// Options configure a Driver.
type Options struct {
	// ClusterID is a label of every container; containers of other clusters are
	// neither listed nor changed.
	ClusterID string
	// Image is the image of a server without image.source.
	Image string
	// PIDs is how many processes and threads a new container may have. 0 means no limit.
	PIDs int64
	// LogSize is at which size the log file of a new container is rotated, a quantity, and LogFiles
	// how many are kept. If the size is empty, the settings of the engine apply.
	LogSize  string
	LogFiles int
	// Host overrides DOCKER_HOST.
	Host string
	// CallTimeout limits a call whose context lacks a deadline.
	CallTimeout time.Duration
	// PullStall is how long a pull may go without any progress.
	PullStall time.Duration

	Log   logr.Logger
	Clock clock.WithTicker
}

// Driver runs servers on a Docker Engine.
type Driver struct {
	*guest.Access // what reaches into containers

	Options Options
	engine  *engine.Client
	logSize int64 // of LogSize, in bytes
	fetches *download.Tracker
	cache   inspectionCache
	calls   kit.Calls
	watches kit.Watches
	// stops has, by container, the last run that was requested to end, because Docker
	// does not show that. After a restart of Drover the worst effect is one more signal.
	stops driver.SyncMap[string, stopRequest]
	// rootDisks has, by container, the last requested size, so that List returns the
	// same note as Ensure. The container's label has the value from its creation.
	rootDisks driver.SyncMap[string, int64]
	// ends has, by container, the end of the run before the one that this process has started.
	ends driver.SyncMap[string, time.Time]
}

var (
	_ driver.Driver        = (*Driver)(nil)
	_ driver.Identifier    = (*Driver)(nil)
	_ driver.FieldDeclarer = (*Driver)(nil)
	_ driver.Fetcher       = (*Driver)(nil)
	_ driver.Closer        = (*Driver)(nil)

	_ driver.Consoler        = (*Driver)(nil)
	_ driver.LogReader       = (*Driver)(nil)
	_ driver.Executor        = (*Driver)(nil)
	_ driver.Dialer          = (*Driver)(nil)
	_ driver.InterfaceLister = (*Driver)(nil)
)

// New returns a driver for the engine that DOCKER_HOST, DOCKER_CERT_PATH and
// DOCKER_TLS_VERIFY name. It does not connect to the engine.
func New(o Options) (*Driver, error) {
	if o.ClusterID == "" {
		return nil, fmt.Errorf("docker: a cluster id is needed")
	}
	o = o.withDefaults()
	logSize, err := o.parseLimits()
	if err != nil {
		return nil, err
	}
	e, err := engine.New(o.Host, o.Clock)
	if err != nil {
		return nil, err
	}
	d := &Driver{Options: o, engine: e, logSize: logSize, calls: kit.Calls{Timeout: o.CallTimeout}}
	find := func(ctx context.Context, uid types.UID) (string, error) {
		s, err := d.findSummary(ctx, driver.Target{UID: uid})
		return s.ID, err
	}
	previousEnd := func(id string) time.Time {
		end, _ := d.ends.Load(id)
		return end
	}
	d.Access = guest.New(guest.Options{Engine: e, Find: find, PreviousEnd: previousEnd, CallTimeout: o.CallTimeout, Clock: o.Clock, Log: o.Log})
	d.fetches = &download.Tracker{Clock: o.Clock, Stall: o.PullStall, Concurrency: download.DefaultConcurrency, Notify: d.watches.Notify}
	return d, nil
}

// DefaultOptions returns the options that flags can change.
func DefaultOptions() *Options {
	return &Options{Image: DefaultImage, PIDs: DefaultPIDs, LogSize: DefaultLogSize, LogFiles: DefaultLogFiles}
}

// AddFlags adds the flags of the driver.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Image, "docker-image", o.Image, "docker: image of a VirtualMachine that names none")
	fs.Int64Var(&o.PIDs, "docker-pids-limit", o.PIDs, "docker: most processes and threads of a new container; 0 means no limit")
	fs.StringVar(&o.LogSize, "docker-log-max-size", o.LogSize, "docker: size at which the log of a new container is rotated, such as 10Mi, where the engine's "+
		"log driver is json-file or local; empty leaves it to the engine's settings")
	fs.IntVar(&o.LogFiles, "docker-log-max-file", o.LogFiles, "docker: most log files that are kept of a container, if --docker-log-max-size is set")
}

// DataDir returns nil: the engine keeps the containers.
func (o *Options) DataDir() *string { return nil }

// Open opens the driver in env.
func (o *Options) Open(env driver.Environment) (driver.Driver, error) {
	opened := *o
	opened.ClusterID, opened.Log, opened.Clock = env.ClusterID, env.Log, env.Clock
	return New(opened)
}

func (o Options) withDefaults() Options {
	o.Image = cmp.Or(o.Image, DefaultImage)
	o.CallTimeout = cmp.Or(o.CallTimeout, kit.DefaultCallTimeout)
	o.PullStall = cmp.Or(o.PullStall, DefaultPullStall)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// parseLimits checks the limits of new containers, and returns the size of a log file in bytes.
func (o Options) parseLimits() (logSize int64, err error) {
	if o.PIDs < 0 {
		return 0, fmt.Errorf("--docker-pids-limit is %d: it must be 0, for no limit, or more", o.PIDs)
	}
	if o.LogSize == "" {
		return 0, nil
	}
	q, err := resource.ParseQuantity(o.LogSize)
	switch {
	case err != nil || q.Value() < minLogSize:
		return 0, fmt.Errorf("--docker-log-max-size is %q: it must be a quantity of %d or more, such as 10Mi; empty leaves it to the engine", o.LogSize, minLogSize)
	case o.LogFiles < 1:
		return 0, fmt.Errorf("--docker-log-max-file is %d: it must be 1 or more", o.LogFiles)
	}
	return q.Value(), nil
}

// minLogSize has room for the engine's longest line and its frame.
const minLogSize = 64 << 10

// EngineID implements driver.Identifier.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	return d.engine.ID(ctx)
}

// Close cancels pulls that are under way and waits for them to end.
func (d *Driver) Close(ctx context.Context) error {
	err := d.fetches.Close(ctx)
	d.engine.Close()
	return err
}
