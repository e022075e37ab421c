// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/history"
)

// Docker is the Docker Engine that DOCKER_HOST names. All worlds share it: what one does to
// the containers of another shows in the events of the other (O6).
type Docker struct{}

// Name implements Engine.
func (Docker) Name() string { return docker.Name }

// Runs implements Engine. The engine is shared, so it cannot be away for one world.
func (Docker) Runs(workload string) bool {
	return !strings.HasSuffix(workload, "-outage") && !strings.HasSuffix(workload, "-exchange")
}

// Args implements Engine.
func (Docker) Args(*World) []string {
	return []string{"--vm-driver=docker", "--docker-image=" + framework.GuestPlain}
}

// Prepare implements Engine.
func (Docker) Prepare(context.Context, *World) error {
	_, err := framework.OpenDockerClient()
	return err
}

// NewVM implements Engine.
func (Docker) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(docker.Name).GracePeriod(5)
}

// BreakImage implements Engine: no registry listens there.
func (Docker) BreakImage(context.Context, *World, string) (image string, err error) {
	return "127.0.0.1:1/none:v1", nil
}

// Resize implements Engine.
func (Docker) Resize(vm *api.VirtualMachine) { setCPU(vm) }

// RepairImage implements Engine.
func (Docker) RepairImage(context.Context, *World) (image string, err error) {
	return framework.GuestPlain, nil
}

// Inspect implements Engine.
func (e Docker) Inspect(ctx context.Context, w *World, _ []history.Process) (Observed, error) {
	o := Observed{Effects: map[string]Effects{}}
	c, err := framework.OpenDockerClient()
	if err != nil {
		return o, err
	}
	containers, err := listContainers(ctx, c, w)
	if err != nil {
		return o, err
	}
	for _, found := range containers {
		res, err := c.ContainerInspect(ctx, found.ID, client.ContainerInspectOptions{})
		if err != nil {
			return o, err
		}
		o.Servers = append(o.Servers, serverOfContainer(res.Container))
		text, err := json.Marshal(res.Container)
		if err != nil {
			return o, err
		}
		o.Text += string(text)
	}
	o.Violations, err = e.readEvents(ctx, c, w, o.Effects)
	return o, err
}

func listContainers(ctx context.Context, c *client.Client, w *World) ([]container.Summary, error) {
	all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", docker.LabelCluster+"="+w.ClusterID)})
	return all.Items, err
}

func serverOfContainer(c container.InspectResponse) Server {
	state := map[container.ContainerState]driver.State{
		container.StateRunning: driver.StateRunning, container.StatePaused: driver.StatePaused,
		container.StateExited: driver.StateStopped, container.StateCreated: driver.StateStopped,
	}[c.State.Status]
	return Server{
		UID: c.Config.Labels[docker.LabelUID], ID: c.ID, Name: c.Config.Labels[docker.LabelName], State: string(state),
		Released: strings.HasSuffix(c.Name, docker.RetainedSuffix),
		Config:   fmt.Sprintf("cpu=%d memory=%d image=%s", c.HostConfig.NanoCPUs, c.HostConfig.Memory, c.Config.Image),
	}
}

// readEvents counts, in the engine's own record, what was done to the world's containers.
func (Docker) readEvents(ctx context.Context, c *client.Client, w *World, effects map[string]Effects) ([]Violation, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.Events(ctx, client.EventsListOptions{
		Since: w.begin.Format(time.RFC3339Nano), Until: time.Now().Format(time.RFC3339Nano),
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", docker.LabelCluster+"="+w.ClusterID),
	})
	live, created := map[string]string{}, map[string]string{}
	var broken []Violation
	for {
		select {
		case err := <-stream.Err:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return broken, err
		case event := <-stream.Messages:
			uid, name := event.Actor.Attributes[docker.LabelUID], event.Actor.Attributes[docker.LabelName]
			if event.Action == events.ActionCreate {
				if live[uid] != "" || created[uid] != "" {
					broken = append(broken, Violation{Rule: "O3", Text: fmt.Sprintf("%s: container %s was created, and %s had been", name, event.Actor.ID, created[uid])})
				}
				live[uid], created[uid] = event.Actor.ID, event.Actor.ID
			}
			effects[name] = countEvent(effects[name], event)
			if slices.Contains([]events.Action{events.ActionDestroy, events.ActionRename}, event.Action) {
				delete(live, uid)
			}
		}
	}
}

func countEvent(e Effects, event events.Message) Effects {
	switch event.Action {
	case events.ActionCreate:
		e.Creates++
	case events.ActionDestroy:
		e.Deletes++
	case events.ActionRename:
		e.Releases++
	case events.ActionStart:
		e.Runs++
	default:
	}
	return e
}

// Outage implements Engine.
func (Docker) Outage(context.Context, *World, bool) (back func() error, err error) {
	return nil, errors.New("the engine is shared")
}

// CleanUp implements Engine.
func (Docker) CleanUp(ctx context.Context, w *World) error {
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	containers, err := listContainers(ctx, c, w)
	for _, found := range containers {
		_, removeErr := c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removeErr)
	}
	return err
}
