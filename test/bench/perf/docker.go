// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// dockerImage is the flag that gives VMs the same image as the floor's containers.
var dockerImage = "--docker-image=" + framework.GuestPlain

const (
	// engineAtOnce is how many containers the floor works on at a time.
	engineAtOnce = 8
	// floorLabel marks the floor's containers.
	floorLabel = "cloudnative.tw/bench-floor"
	// singles is how many VMs are created one after the other in each turn.
	singles = 4
	// cleanTimeout bounds the removal of containers at the end.
	cleanTimeout = 2 * time.Minute
)

// engine is the floor of the docker driver: it creates and deletes containers like Drover's
// through the Docker API.
type engine struct{ *client.Client }

// withEngine opens the engine for a measurement. It removes the containers of an earlier run, and at
// the end those that are left after a failure.
func withEngine(measure func(context.Context, *bench.Environment, *engine) error) func(context.Context, *bench.Environment) error {
	return func(ctx context.Context, e *bench.Environment) error {
		c, err := framework.OpenDockerClient()
		if err != nil {
			return err
		}
		clusterID, err := e.ReadClusterID(ctx)
		if err != nil {
			return err
		}
		clean := func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
			defer cancel()
			removeLabelled(ctx, c, floorLabel)
			removeLabelled(ctx, c, docker.LabelCluster+"="+clusterID)
		}
		clean()
		defer clean()
		return measure(ctx, e, &engine{c})
	}
}

// measureDocker compares Drover's containers with the Docker API alone: one container, one
// among many, and many.
func measureDocker(ctx context.Context, e *bench.Environment, floor *engine) error {
	return e.WithController(ctx, func(p *bench.Controller) error {
		d := &dockerSuite{e, floor, p}
		alone, err := d.measureSingles(ctx, 1, "")
		for _, n := range e.Sizes {
			if err == nil {
				err = d.measureMany(ctx, n, alone)
			}
		}
		return err
	}, "--vm-driver=docker", dockerImage)
}

// dockerSuite has the floor and the controller that take turns.
type dockerSuite struct {
	*bench.Environment
	engine     *engine
	controller *bench.Controller
}

// measureMany creates n VMs at a time, and then one among n others.
func (d *dockerSuite) measureMany(ctx context.Context, n int, alone []round) error {
	var ours, floor []round
	if err := bench.TakeTurns(d.Turns, func(int) error {
		r, err := runRound(ctx, d.Environment, d.controller, n)
		ours = append(ours, r)
		return err
	}, func(int) error { return d.measureContainers(ctx, n, &floor) }); err != nil {
		return err
	}
	if active, gone := d.reportTurns(ours, floor, [2]string{activeText, goneText}, "engine", n); n == 100 {
		active.RatioAtMost(1.15)
		gone.RatioAtMost(1.2)
	}
	if _, err := d.Idle.CreateMany(ctx, n); err != nil {
		return err
	}
	among, err := d.measureSingles(ctx, n, ", among others")
	if err != nil {
		return err
	}
	if row := reportAmong(d.Environment, alone, among, n); n == 100 {
		row.RatioAtMost(1.2)
	}
	_, err = d.Idle.DeleteMany(ctx, n)
	return err
}

// reportTurns reports how long VMs took until they were Active and until they were gone, compared with containers.
func (d *dockerSuite) reportTurns(ours, floor []round, names [2]string, beside string, vms int) (active, gone *bench.Row) {
	row := func(what, beside string, of func(round) float64) *bench.Row {
		return d.AddRow(what, vms, "ms", bench.Figures(ours, of)...).CompareWith(beside, bench.Figures(floor, of)...)
	}
	return row(names[0], beside, activeMS), row(names[1], "stop and remove", goneMS)
}

// measureSingles creates one VM or container at a time, while a number of VMs exists.
func (d *dockerSuite) measureSingles(ctx context.Context, vms int, suffix string) (ours []round, err error) {
	if _, err := newVM(ctx, d.Environment, "warm"); err != nil {
		return nil, err
	}
	var floor []round
	err = bench.TakeTurns(singles*d.Turns, func(turn int) error {
		if err := d.AwaitQuiet(ctx, d.controller); err != nil {
			return err
		}
		r, err := newVM(ctx, d.Environment, fmt.Sprintf("one-%d", turn))
		ours = append(ours, r)
		return err
	}, func(int) error { return d.measureContainers(ctx, 1, &floor) })
	if err != nil {
		return nil, err
	}
	if active, _ := d.reportTurns(ours, floor, [2]string{activeText + suffix, "delete" + suffix}, "create and start", vms); suffix == "" {
		active.RatioAtMost(1.25)
	}
	return ours, nil
}

// measureContainers creates and deletes containers through the Docker API.
func (d *dockerSuite) measureContainers(ctx context.Context, count int, rounds *[]round) (err error) {
	ctx, cancel := bench.WithTimeout(ctx, count)
	defer cancel()
	if err := d.AwaitQuiet(ctx, d.controller); err != nil {
		return err
	}
	var r round
	var ids []string
	if r.active, ids, err = d.engine.createContainers(ctx, count); err != nil {
		return err
	}
	if err := d.AwaitQuiet(ctx, d.controller); err != nil {
		return err
	}
	r.gone, err = d.engine.deleteContainers(ctx, ids)
	*rounds = append(*rounds, r)
	return err
}

// createContainers creates and starts containers.
func (e *engine) createContainers(ctx context.Context, count int) (took time.Duration, ids []string, err error) {
	var mu sync.Mutex
	begin := time.Now()
	err = bench.ForEach(ctx, count, engineAtOnce, func(ctx context.Context, n int) error {
		made, err := e.ContainerCreate(ctx, containerLikeDrovers(n))
		if err != nil {
			return err
		}
		mu.Lock()
		ids = append(ids, made.ID)
		mu.Unlock()
		_, err = e.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
		return err
	})
	return time.Since(begin), ids, err
}

// containerLikeDrovers returns the container that Drover creates for a VM of this
// benchmark.
func containerLikeDrovers(n int) client.ContainerCreateOptions {
	const cpus, memory = 2, 4e9
	return client.ContainerCreateOptions{
		Name: fmt.Sprintf("drover-bench-%05d", n),
		Config: &container.Config{
			Image: framework.GuestPlain, Hostname: bench.VMName(n), Labels: map[string]string{floorLabel: "true"},
		},
		HostConfig: &container.HostConfig{
			Resources:     container.Resources{NanoCPUs: cpus * 1e9, Memory: memory, MemorySwap: memory},
			RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyUnlessStopped},
		},
	}
}

// deleteContainers stops and removes containers.
func (e *engine) deleteContainers(ctx context.Context, ids []string) (time.Duration, error) {
	begin := time.Now()
	err := bench.ForEach(ctx, len(ids), engineAtOnce, func(ctx context.Context, n int) error {
		if _, err := e.ContainerStop(ctx, ids[n], client.ContainerStopOptions{}); err != nil {
			return err
		}
		_, err := e.ContainerRemove(ctx, ids[n], client.ContainerRemoveOptions{RemoveVolumes: true})
		return err
	})
	return time.Since(begin), err
}

// removeLabelled removes the containers that have a label.
func removeLabelled(ctx context.Context, c *client.Client, label string) {
	all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return // without an engine there are no containers
	}
	for _, found := range all.Items {
		_, _ = c.ContainerRemove(ctx, found.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
}
