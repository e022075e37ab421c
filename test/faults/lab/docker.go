// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
)

// Docker is the Docker Engine that DOCKER_HOST names. All worlds share it: what one does to
// the containers of another shows in the events of the other (O6). Each has a socket of its
// own in front of it.
type Docker struct {
	worlds   *sync.Map // *dockerWorld by *World
	steps    bool      // whether its clock can step
	registry func() (address string, err error)
	second   *secondDocker
}

// NewDocker returns the engine.
func NewDocker() Docker {
	return Docker{worlds: &sync.Map{}, registry: sync.OnceValues(startForeignRegistry), second: &secondDocker{}}
}

// NewSteppingDocker returns the engine with a clock that StepClock steps.
func NewSteppingDocker() Docker {
	e := NewDocker()
	e.steps = true
	return e
}

// dockerWorld is a world's share of the engine.
type dockerWorld struct {
	proxy *framework.DockerProxy
	clock *dockerClock       // nil for one that does not step
	stop  context.CancelFunc // stops the record of events

	foreign foreignContainer

	mu     sync.Mutex
	events map[string]events.Message
}

// Name implements Engine.
func (Docker) Name() string { return docker.Name }

// Runs implements Engine.
func (Docker) Runs(string) bool { return true }

// Args implements Engine.
func (Docker) Args(*World) []string {
	return []string{"--vm-driver=docker", "--docker-image=" + framework.GuestPlain}
}

// Variables implements Engine.
func (e Docker) Variables(w *World) []string { return e.world(w).proxy.Env() }

func (e Docker) world(w *World) *dockerWorld {
	d, _ := e.worlds.Load(w)
	return d.(*dockerWorld)
}

// Prepare implements Engine.
func (e Docker) Prepare(ctx context.Context, w *World) error {
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	d, host := &dockerWorld{events: map[string]events.Message{}}, c.DaemonHost()
	if e.steps {
		socket := filepath.Join(w.Dir, "clock.sock")
		if d.clock, err = openDockerClock(socket, host); err != nil {
			return err
		}
		host = "unix://" + socket
	}
	if d.foreign, err = startForeignContainer(ctx, c, w); err != nil {
		return errors.Join(err, d.foreign.remove(context.WithoutCancel(ctx), c))
	}
	d.proxy = framework.OpenDockerProxy(filepath.Join(w.Dir, "docker.sock"), host, report(w))
	ctx, d.stop = context.WithCancel(context.WithoutCancel(ctx))
	e.worlds.Store(w, d)
	go func() {
		if err := d.recordEvents(ctx, c, w, ""); err != nil && ctx.Err() == nil {
			report(w)("recording events: %v", err)
		}
	}()
	return nil
}

// NewVM implements Engine.
func (Docker) NewVM(name string) *framework.VMBuilder {
	return framework.NewVM(name).Driver(docker.Name).GracePeriod(5)
}

// BreakImage implements Engine: a registry answers that it has no such image.
func (e Docker) BreakImage(context.Context, *World, string) (image string, err error) {
	address, err := e.registry()
	return address + "/none:v1", err
}

// Resize implements Engine.
func (Docker) Resize(vm *api.VirtualMachine) { setCPU(vm) }

// RepairImage implements Engine.
func (Docker) RepairImage(context.Context, *World) (image string, err error) {
	return framework.GuestPlain, nil
}

// Inspect implements Engine.
func (e Docker) Inspect(ctx context.Context, w *World, _ []rules.Process) (Observed, error) {
	o := newObserved()
	c, err := framework.OpenDockerClient()
	if err != nil {
		return o, err
	}
	containers, err := listContainers(ctx, c, w)
	if err != nil {
		return o, err
	}
	containers = slices.DeleteFunc(containers, func(c container.Summary) bool { return w.isCopy(c.ID) })
	for _, found := range containers {
		res, err := c.ContainerInspect(ctx, found.ID, client.ContainerInspectOptions{})
		switch {
		case errdefs.IsNotFound(err): // removed since it was listed
			continue
		case err != nil:
			return o, err
		}
		o.Servers = append(o.Servers, serverOfContainer(res.Container))
		text, err := json.Marshal(res.Container)
		if err != nil {
			return o, err
		}
		o.Text += string(text)
	}
	err = e.readEvents(ctx, c, w, &o)
	o.Violations = append(o.Violations, e.world(w).foreign.check(ctx, c)...)
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
		UID: types.UID(c.Config.Labels[docker.LabelUID]), ID: c.ID, Name: c.Config.Labels[docker.LabelName], State: state,
		Released: strings.HasSuffix(c.Name, docker.RetainedSuffix),
		Config:   fmt.Sprintf("cpu=%d memory=%d image=%s", c.HostConfig.NanoCPUs, c.HostConfig.Memory, c.Config.Image),
	}
}

// recordEvents records what is done to the world's containers. The engine itself keeps only
// the last 256 events of all worlds.
func (d *dockerWorld) recordEvents(ctx context.Context, c *client.Client, w *World, until string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream := c.Events(ctx, client.EventsListOptions{
		Since: w.since().Format(time.RFC3339Nano), Until: until,
		Filters: client.Filters{}.Add("type", string(events.ContainerEventType)).Add("label", docker.LabelCluster+"="+w.ClusterID),
	})
	for {
		select {
		case err := <-stream.Err:
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return err
		case event := <-stream.Messages:
			d.mu.Lock()
			d.events[fmt.Sprint(event.TimeNano, event.Actor.ID, event.Action)] = event
			d.mu.Unlock()
		}
	}
}

// readEvents counts, in the engine's record, the actions on the world's containers.
func (e Docker) readEvents(ctx context.Context, c *client.Client, w *World, o *Observed) error {
	d := e.world(w)
	if err := d.recordEvents(ctx, c, w, time.Now().Format(time.RFC3339Nano)); err != nil { // those that are on their way
		return err
	}
	d.mu.Lock()
	since := w.since().UnixNano()
	maps.DeleteFunc(d.events, func(_ string, e events.Message) bool { return e.TimeNano < since })
	all := slices.SortedFunc(maps.Values(d.events), func(a, b events.Message) int { return cmp.Compare(a.TimeNano, b.TimeNano) })
	d.mu.Unlock()
	live, created := map[types.UID]string{}, map[types.UID]string{}
	for _, event := range all {
		if w.isCopy(event.Actor.ID) {
			continue
		}
		uid, name := types.UID(event.Actor.Attributes[docker.LabelUID]), event.Actor.Attributes[docker.LabelName]
		if event.Action == events.ActionCreate {
			if live[uid] != "" || created[uid] != "" {
				o.Violations = append(o.Violations, rules.Broken(rules.O3, "%s: container %s was created, and %s had been", name, event.Actor.ID, created[uid]))
			}
			live[uid], created[uid] = event.Actor.ID, event.Actor.ID
			if o.Created[uid].IsZero() {
				o.Created[uid] = time.Unix(0, event.TimeNano)
			}
		}
		if event.Action == events.ActionDestroy && w.wasRemoved(event.Actor.ID) {
			delete(created, uid)
		} else {
			o.Effects[name] = countEvent(o.Effects[name], event)
		}
		if event.Action == events.ActionDestroy || isRelease(event) {
			delete(live, uid)
		}
	}
	return nil
}

func isRelease(e events.Message) bool {
	return e.Action == events.ActionRename && strings.HasSuffix(e.Actor.Attributes["name"], docker.RetainedSuffix)
}

func countEvent(e Effects, event events.Message) Effects {
	switch event.Action {
	case events.ActionCreate:
		e.Creates++
	case events.ActionDestroy:
		e.Deletes++
	case events.ActionRename:
		if isRelease(event) {
			e.Releases++
		}
	case events.ActionStart:
		e.Runs++
	default:
	}
	return e
}

// Outage implements Engine.
func (e Docker) Outage(ctx context.Context, w *World, exchanged bool) (back func() error, err error) {
	p := e.world(w).proxy
	if !exchanged {
		p.Disconnect()
		return func() error { p.Restore(); return nil }, nil
	}
	host, err := e.second.acquire()
	if err != nil {
		return nil, err
	}
	p.Disconnect()
	other := framework.OpenDockerProxy(filepath.Join(w.Dir, "docker.sock"), host, report(w))
	return func() error {
		other.Disconnect()
		p.Restore()
		return errors.Join(e.second.checkEmpty(context.WithoutCancel(ctx), host, w), e.second.release())
	}, nil
}

// report returns a function that prints what went wrong in a world.
func report(w *World) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(os.Stderr, w.Name+": "+format+"\n", args...) }
}

// CleanUp implements Engine.
func (e Docker) CleanUp(ctx context.Context, w *World) error {
	foreign := foreignContainer{}
	if v, ok := e.worlds.LoadAndDelete(w); ok {
		d := v.(*dockerWorld)
		foreign = d.foreign
		d.stop()
		d.proxy.Disconnect()
		if d.clock != nil {
			_ = d.clock.server.Close()
		}
	}
	c, err := framework.OpenDockerClient()
	if err != nil {
		return err
	}
	containers, err := listContainers(ctx, c, w)
	for _, found := range containers {
		_, removeErr := c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removeErr)
	}
	return errors.Join(err, foreign.remove(ctx, c))
}
