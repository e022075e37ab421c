// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest gives access to containers that Drover runs: it reads their output, attaches
// to their console, runs commands in them, connects to their ports and lists their network
// interfaces. It does not change containers.
//
// Start with Access, whose exported methods are optional interfaces of package driver, one
// in each file. The call timeout limits how long the engine takes to answer. Open logs,
// consoles, commands and connections last until their context ends or the container stops.
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
	// Find returns the id of the container of a UID. It ignores released containers and those of
	// other clusters.
	Find func(ctx context.Context, uid types.UID) (id string, err error)
	// PreviousEnd returns the end of a container's previous run, before its last one, or zero if unknown.
	PreviousEnd func(id string) time.Time
	// CallTimeout limits how long the engine takes to answer.
	CallTimeout time.Duration
	Clock       clock.Clock
	Log         logr.Logger
}

// Access gives access to the containers of one cluster on one engine.
type Access struct{ options Options }

var (
	_ driver.Consoler        = (*Access)(nil)
	_ driver.LogReader       = (*Access)(nil)
	_ driver.Executor        = (*Access)(nil)
	_ driver.Dialer          = (*Access)(nil)
	_ driver.InterfaceLister = (*Access)(nil)
)

// New returns an Access with options.
func New(o Options) *Access { return &Access{o} }

// findContainer inspects the container of a server.
func (a *Access) findContainer(ctx context.Context, uid types.UID) (inspected, error) {
	if err := driver.CheckUID(uid); err != nil {
		return inspected{}, err
	}
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	id, err := a.options.Find(ctx, uid)
	if err != nil {
		return inspected{}, err
	}
	return a.inspectContainer(ctx, id)
}

func (a *Access) withTimeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, a.options.CallTimeout)
}

func (a *Access) inspectContainer(ctx context.Context, id string) (inspected, error) {
	c, err := a.options.Engine.Inspect(ctx, id)
	if errdefs.IsNotFound(err) {
		err = driver.Errorf(driver.ErrNotFound, "container %s is gone", engine.ShortID(id))
	}
	return inspected(c), err
}

// findRunning returns the container of a server, or ErrRetry if it does not run or is paused.
func (a *Access) findRunning(ctx context.Context, uid types.UID) (inspected, error) {
	c, err := a.findContainer(ctx, uid)
	if err == nil {
		err = c.checkRunning()
	}
	return c, err
}

// checkUnchanged checks that the container is still in the same run, before and after a call
// that attaches or connects. The address of a container that has stopped may belong to another
// container, and to attach to a stopped container would start it.
func (a *Access) checkUnchanged(ctx context.Context, earlier inspected) error {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	now, err := a.inspectContainer(ctx, earlier.ID)
	if err != nil {
		return err
	}
	if err := now.checkRunning(); err != nil {
		return err
	}
	if !now.isSameRun(earlier) {
		return driver.Errorf(driver.ErrRetry, "container %s was restarted during the call", engine.ShortID(earlier.ID))
	}
	return nil
}

// inspected is a container with the state that the engine has reported.
type inspected container.InspectResponse

func (c inspected) checkRunning() error {
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
func (c inspected) hasProcess() bool {
	return c.State != nil && (c.State.Status == container.StateRunning || c.State.Status == container.StatePaused)
}

func (c inspected) isSameRun(other inspected) bool {
	return c.State != nil && other.State != nil && c.State.StartedAt == other.State.StartedAt
}

func (c inspected) hasTerminal() bool { return c.Config != nil && c.Config.Tty }

// openStream makes a call that opens a stream, which lasts until ctx ends. If the engine does not
// begin to answer in time, openStream calls cancel, which ends ctx.
func (a *Access) openStream(ctx context.Context, cancel context.CancelCauseFunc, action string, call engine.Call) error {
	limited, cancelLimit := a.withTimeout(ctx)
	defer cancelLimit()
	stop := context.AfterFunc(limited, func() { cancel(limited.Err()) })
	defer stop()
	return a.options.Engine.Read(ctx, action, func(ctx context.Context, e *client.Client) error {
		err := call(ctx, e)
		if timeout := limited.Err(); err != nil && timeout != nil {
			return fmt.Errorf("%w (%w)", timeout, err)
		}
		return err
	})
}
