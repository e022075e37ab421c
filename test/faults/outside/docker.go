// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"context"
	"errors"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
)

// disturbDocker disturbs a server as docker rm, stop, pause, update and rename do, and as the
// kernel does when memory runs out.
func disturbDocker(ctx context.Context, w *lab.World, s lab.Server, d Disturbance) error {
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	switch d {
	case Removed:
		w.NoteRemoval(s)
		_, err = c.ContainerRemove(ctx, s.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	case Stopped:
		_, err = c.ContainerStop(ctx, s.ID, client.ContainerStopOptions{})
	case Killed:
		err = killContainer(ctx, c, s.ID)
	case Paused:
		err = framework.PauseContainer(ctx, c, s.ID)
	case Resized:
		_, err = c.ContainerUpdate(ctx, s.ID, client.ContainerUpdateOptions{Resources: &container.Resources{NanoCPUs: 250_000_000}})
	case Renamed:
		_, err = c.ContainerRename(ctx, s.ID, client.ContainerRenameOptions{NewName: "renamed-" + s.ID[:12]})
	case Suspended, SupervisorKilled, SupervisorSuspended, SupervisorHalted, ContainerKilled, Halted, BothKilled,
		Away, Exchanged, Restored, Copied, Superseded, ClockBehind:
		return unsupportedError(d)
	}
	isEnding := err != nil && strings.Contains(err.Error(), "cannot update a stopped container")
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) || isEnding { // Drover has just removed or stopped it
		return ErrNoServer
	}
	return err
}

// copyContainer creates a copy of a container, with its configuration and labels. undo
// removes the copy.
func copyContainer(ctx context.Context, w *lab.World, s lab.Server) (undo func() error, err error) {
	c, err := framework.OpenDockerClient()
	if err != nil {
		return nil, err
	}
	found, err := c.ContainerInspect(ctx, s.ID, client.ContainerInspectOptions{})
	if errdefs.IsNotFound(err) {
		return nil, ErrNoServer
	}
	if err != nil {
		return nil, err
	}
	made, err := c.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config: found.Container.Config, HostConfig: found.Container.HostConfig, Name: "copy-of-" + s.ID[:12],
	})
	if err != nil {
		return nil, err
	}
	w.NoteCopy(made.ID)
	return func() error {
		_, err := c.ContainerRemove(context.WithoutCancel(ctx), made.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		return err
	}, nil
}

// killContainer kills a container's process, which the engine reports as a crash.
func killContainer(ctx context.Context, c *client.Client, id string) error {
	found, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return err
	}
	if found.Container.State.Pid == 0 {
		return ErrNoServer
	}
	err = syscall.Kill(found.Container.State.Pid, syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		return ErrNoServer
	}
	return err
}
