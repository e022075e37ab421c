// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest reaches into containers that Drover runs: it reads their output, attaches
// to their console, runs commands in them, connects to their ports and lists their network
// interfaces. It changes no container.
//
// Start with Access, whose exported methods are optional interfaces of the driver contract,
// one in each file. A call that answers at once has the call timeout; what is open
// afterwards (a log that is followed, a console, a command, a connection) lasts until its
// context ends or the container stops.
package guest

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/go-logr/logr"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// Options has the clients and settings that an Access needs.
type Options struct {
	Engine *engine.Client
	// Find returns the id of the only container of a UID, among those of this cluster that
	// were not released.
	Find func(ctx context.Context, uid types.UID) (id string, err error)
	// PreviousEnd returns the end of the run of a container before the last, or zero if that is not
	// known.
	PreviousEnd func(id string) time.Time
	// CallTimeout limits how long the engine takes to answer.
	CallTimeout time.Duration
	Clock       clock.Clock
	Log         logr.Logger
}

// Access reaches into the containers of one cluster on one engine.
type Access struct{ options Options }

var (
	_ driver.Consoler        = (*Access)(nil)
	_ driver.LogReader       = (*Access)(nil)
	_ driver.Executor        = (*Access)(nil)
	_ driver.Dialer          = (*Access)(nil)
	_ driver.InterfaceLister = (*Access)(nil)
)

// New returns an Access.
func New(o Options) *Access { return &Access{o} }

// findContainer inspects the container of a server.
func (a *Access) findContainer(ctx context.Context, uid types.UID) (found, error) {
	if err := driver.CheckUID(uid); err != nil {
		return found{}, err
	}
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	id, err := a.options.Find(ctx, uid)
	if err != nil {
		return found{}, err
	}
	return a.inspectContainer(ctx, id)
}

func (a *Access) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.options.CallTimeout)
}

func (a *Access) inspectContainer(ctx context.Context, id string) (found, error) {
	c, err := a.options.Engine.Inspect(ctx, id)
	if errdefs.IsNotFound(err) {
		err = driver.Errorf(driver.ErrNotFound, "container %s is gone", engine.ShortID(id))
	}
	return found(c), err
}

// findRunning is findContainer for calls that need a process in the container that runs.
func (a *Access) findRunning(ctx context.Context, uid types.UID) (found, error) {
	c, err := a.findContainer(ctx, uid)
	if err == nil {
		err = c.checkRunning()
	}
	return c, err
}

// checkUnchanged checks that the same run of the container goes on. A container that
// stopped meanwhile has given its address to another one, and a call that attaches to it
// would start it.
func (a *Access) checkUnchanged(ctx context.Context, before found) error {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	now, err := a.inspectContainer(ctx, before.ID)
	if err != nil {
		return err
	}
	if err := now.checkRunning(); err != nil {
		return err
	}
	if !now.isSameRun(before) {
		return driver.Errorf(driver.ErrRetry, "container %s was restarted during the call", engine.ShortID(before.ID))
	}
	return nil
}

// found is a container as it was inspected.
type found container.InspectResponse

func (c found) checkRunning() error {
	switch {
	case c.State == nil:
		return driver.Errorf(driver.ErrRetry, "the server does not run: the engine does not report the state of container %s", engine.ShortID(c.ID))
	case c.State.Status == container.StatePaused:
		return driver.Errorf(driver.ErrRetry, "the server is paused: resume it first")
	case c.State.Status != container.StateRunning:
		return driver.Errorf(driver.ErrRetry, "the server does not run: container %s is %s", engine.ShortID(c.ID), c.State.Status)
	}
	return nil
}

// hasProcess reports whether the container runs, paused or not.
func (c found) hasProcess() bool {
	return c.State != nil && (c.State.Status == container.StateRunning || c.State.Status == container.StatePaused)
}

func (c found) isSameRun(other found) bool {
	return c.State != nil && other.State != nil && c.State.StartedAt == other.State.StartedAt
}

func (c found) hasTerminal() bool { return c.Config != nil && c.Config.Tty }

// openStream makes a call whose answer is open until ctx ends. If the engine does not begin
// to answer in time, end is called.
func (a *Access) openStream(ctx context.Context, end context.CancelCauseFunc, action string, call engine.Call) error {
	answer, cancel := a.withTimeout(ctx)
	defer cancel()
	stop := context.AfterFunc(answer, func() { end(answer.Err()) })
	defer stop()
	return a.options.Engine.Read(ctx, action, func(ctx context.Context, e *client.Client) error {
		err := call(ctx, e)
		if late := answer.Err(); err != nil && late != nil {
			return fmt.Errorf("%w (%w)", late, err)
		}
		return err
	})
}
