// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// create makes the container of a UID that has none, once its image is present. It
// does not check for the image first: the engine refuses to create one without.
func (d *Driver) create(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return driver.Server{}, err
	}
	if spec.Image.PullPolicy != driver.PullAlways && len(d.fetches.PendingServers(spec.UID)) == 0 {
		r, err := d.createContainer(ctx, spec)
		if err == nil {
			return d.converge(ctx, spec, r)
		}
		if driver.ReasonOf(err) != driver.ReasonImageUnavailable {
			return driver.Server{}, err
		}
	}
	if waits, err := d.fetching(ctx, spec); err != nil {
		return driver.Server{}, err
	} else if waits {
		return d.fetches.PendingServer(spec.UID), nil
	}
	r, err := d.createContainer(ctx, spec)
	if err != nil {
		return driver.Server{}, err
	}
	return d.converge(ctx, spec, r)
}

// createContainer creates a container, starts it unless it is to be off, and
// inspects it.
func (d *Driver) createContainer(ctx context.Context, spec driver.ServerSpec) (record, error) {
	image, name := d.image(spec), containerName(spec)
	var id string
	err := d.change(ctx, "create container "+name, func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerCreate(ctx, d.createOptions(spec, name, image))
		id = res.ID
		return err
	})
	if isConflict(err) {
		return d.holder(ctx, spec, name)
	}
	if err != nil {
		return record{}, explainCreate(spec, image, err)
	}
	d.fetches.ReleaseExcept(spec.UID)
	r := record{id: id}
	if spec.Power != driver.PowerOff {
		return r, d.power(ctx, spec, stepStart, &r) // it is new, so no inspection is needed first
	}
	return r, d.refresh(ctx, &r)
}

func (d *Driver) createOptions(spec driver.ServerSpec, name, image string) client.ContainerCreateOptions {
	exposed, bindings := portMaps(spec.Ports)
	return client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image:        image,
			Hostname:     hostname(spec.Name),
			Labels:       labels(spec, d.ClusterID, image),
			ExposedPorts: exposed,
		},
		HostConfig: &container.HostConfig{
			Resources:     resources(spec),
			RestartPolicy: container.RestartPolicy{Name: restartMode(spec.RestartPolicy)},
			PortBindings:  bindings,
		},
	}
}

// resources allows no swap: MemorySwap is the sum of memory and swap.
func resources(spec driver.ServerSpec) container.Resources {
	return container.Resources{NanoCPUs: spec.CPUMilli * 1e6, Memory: spec.MemoryBytes, MemorySwap: spec.MemoryBytes}
}

func restartMode(p driver.RestartPolicy) container.RestartPolicyMode {
	switch p {
	case driver.RestartOnFailure:
		return container.RestartPolicyOnFailure
	case driver.RestartNever:
		return container.RestartPolicyDisabled
	case driver.RestartAlways:
	}
	return container.RestartPolicyUnlessStopped
}

// portMaps publishes ports, on all addresses of the host if none is given. An empty
// host port lets the engine choose.
func portMaps(ports []driver.Port) (network.PortSet, network.PortMap) {
	exposed, bindings := network.PortSet{}, network.PortMap{}
	for _, p := range ports {
		inside, ok := network.PortFrom(uint16(p.Port), network.IPProtocol(protocol(p))) //nolint:gosec // the API allows 1 to 65535
		if !ok {
			continue
		}
		outside := network.PortBinding{HostIP: hostIP(p)}
		if p.HostPort != 0 {
			outside.HostPort = strconv.Itoa(int(p.HostPort))
		}
		exposed[inside] = struct{}{}
		bindings[inside] = append(bindings[inside], outside)
	}
	return exposed, bindings
}

// hostIP is the address to publish a port on; the zero value means all.
func hostIP(p driver.Port) netip.Addr {
	ip, _ := netip.ParseAddr(p.HostIP) // check has validated it
	return ip
}

const (
	holderTries = 30
	holderPause = 100 * time.Millisecond
)

// holder returns the container that has the name if it is this server's, which
// another leader created meanwhile, and else an error. Docker reserves the name
// before the container becomes visible, so holder retries for a while.
func (d *Driver) holder(ctx context.Context, spec driver.ServerSpec, name string) (record, error) {
	for range holderTries {
		if r, err := d.find(ctx, spec.Target); !errors.Is(err, driver.ErrNotFound) {
			return r, err
		}
		other, err := d.inspect(ctx, name)
		switch {
		case err == nil && (other.uid != spec.UID || other.cluster != d.ClusterID):
			return record{}, nameConflict(other)
		case err == nil:
			return other, nil
		case !isGone(err):
			return record{}, err
		}
		if err := d.wait(ctx, holderPause); err != nil {
			return record{}, err
		}
	}
	return record{}, driver.Errorf(driver.ErrRetry, "the container name %s is taken by a creation under way", name)
}

func nameConflict(other record) error {
	whose := "is not Drover's"
	if other.cluster != "" {
		whose = fmt.Sprintf("belongs to VirtualMachine %s/%s of UID %s in the cluster %s", other.namespace, other.vm, other.uid, other.cluster)
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"container %s has the name %s, which this server needs, and %s: rename or remove it, it is left alone", shortID(other.id), other.name, whose))
}

// wait pauses for a short time, or until ctx ends.
func (d *Driver) wait(ctx context.Context, pause time.Duration) error {
	timer := d.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return driver.Errorf(driver.ErrRetry, "out of time: %w", ctx.Err())
	}
}
