// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// engineAtOnce is how many containers the floor works on at a time.
	engineAtOnce = 8
	// floorLabel marks the floor's containers.
	floorLabel = "cloudnative.tw/bench-floor"
)

// dockerFloor is the floor of the docker driver: the Docker API's own calls, for
// containers like Drover's.
type dockerFloor struct{ client *client.Client }

func openDockerFloor() (*dockerFloor, error) {
	c, err := framework.OpenDockerClient()
	return &dockerFloor{client: c}, err
}

// createContainers creates and starts containers.
func (e *dockerFloor) createContainers(ctx context.Context, count int) (took time.Duration, ids []string, err error) {
	ctx, cancel := bench.WithTimeout(ctx, count)
	defer cancel()
	var mu sync.Mutex
	begin := time.Now()
	err = bench.ForEach(ctx, count, engineAtOnce, func(ctx context.Context, n int) error {
		made, err := e.client.ContainerCreate(ctx, containerLikeDrovers(n))
		if err != nil {
			return err
		}
		mu.Lock()
		ids = append(ids, made.ID)
		mu.Unlock()
		_, err = e.client.ContainerStart(ctx, made.ID, client.ContainerStartOptions{})
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
func (e *dockerFloor) deleteContainers(ctx context.Context, ids []string) (time.Duration, error) {
	ctx, cancel := bench.WithTimeout(ctx, len(ids))
	defer cancel()
	begin := time.Now()
	err := bench.ForEach(ctx, len(ids), engineAtOnce, func(ctx context.Context, n int) error {
		if _, err := e.client.ContainerStop(ctx, ids[n], client.ContainerStopOptions{}); err != nil {
			return err
		}
		_, err := e.client.ContainerRemove(ctx, ids[n], client.ContainerRemoveOptions{RemoveVolumes: true})
		return err
	})
	return time.Since(begin), err
}

// removeLeftovers removes the containers of an earlier run.
func (e *dockerFloor) removeLeftovers(ctx context.Context) { removeLabelled(ctx, e.client, floorLabel) }

// removeLabelled removes the containers that have a label.
func removeLabelled(ctx context.Context, c *client.Client, label string) {
	all, err := c.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
	if err != nil {
		return // without an engine there are no containers
	}
	for _, one := range all.Items {
		_, _ = c.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	}
}
