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

// createServer makes the container of a UID that has none, once its image is present. It
// does not check for the image first: the engine refuses to create one without.
func (d *Driver) createServer(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return driver.Server{}, err
	}
	if spec.Image.PullPolicy != driver.PullAlways && len(d.fetches.Pending(spec.UID)) == 0 {
		r, err := d.createInstance(ctx, spec)
		if err == nil {
			return d.convergeInstance(ctx, spec, r)
		}
		if driver.ReasonOf(err) != driver.ReasonImageUnavailable {
			return driver.Server{}, err
		}
	}
	if waits, err := d.ensureImage(ctx, spec); err != nil {
		return driver.Server{}, err
	} else if waits {
		return d.fetches.Server(spec.UID), nil
	}
	r, err := d.createInstance(ctx, spec)
	if err != nil {
		return driver.Server{}, err
	}
	return d.convergeInstance(ctx, spec, r)
}

// createInstance creates a container, starts it unless it is to be off, and
// inspects it.
func (d *Driver) createInstance(ctx context.Context, spec driver.ServerSpec) (instance, error) {
	image, name := d.imageReference(spec), containerName(spec)
	var id string
	err := d.change(ctx, "create container "+name, func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerCreate(ctx, d.createOptions(spec, name, image))
		id = res.ID
		return err
	})
	if isConflict(err) {
		return d.findNameHolder(ctx, spec, name)
	}
	if err != nil {
		return instance{}, explainCreate(spec, image, err)
	}
	d.fetches.Keep(spec.UID)
	r := instance{id: id}
	if spec.Power != driver.PowerOff {
		return r, d.changePower(ctx, spec, stepStart, &r) // it is new, so no inspection is needed first
	}
	return r, d.refreshInstance(ctx, &r)
}

func (d *Driver) createOptions(spec driver.ServerSpec, name, image string) client.ContainerCreateOptions {
	exposed, bindings := portMaps(spec.Ports)
	return client.ContainerCreateOptions{
		Name: name,
		Config: &container.Config{
			Image:        image,
			Hostname:     containerHostname(spec.Name),
			Labels:       containerLabels(spec, d.ClusterID, image),
			ExposedPorts: exposed,
		},
		HostConfig: &container.HostConfig{
			Resources:     resourceLimits(spec),
			RestartPolicy: container.RestartPolicy{Name: restartPolicy(spec.RestartPolicy)},
			PortBindings:  bindings,
		},
	}
}

// resourceLimits allows no swap: MemorySwap is the sum of memory and swap.
func resourceLimits(spec driver.ServerSpec) container.Resources {
	return container.Resources{NanoCPUs: spec.CPUMilli * 1e6, Memory: spec.MemoryBytes, MemorySwap: spec.MemoryBytes}
}

func restartPolicy(p driver.RestartPolicy) container.RestartPolicyMode {
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
		inside, ok := network.PortFrom(uint16(p.Port), network.IPProtocol(portProtocol(p))) //nolint:gosec // the API allows 1 to 65535
		if !ok {
			continue
		}
		outside := network.PortBinding{HostIP: publishedIP(p)}
		if p.HostPort != 0 {
			outside.HostPort = strconv.Itoa(int(p.HostPort))
		}
		exposed[inside] = struct{}{}
		bindings[inside] = append(bindings[inside], outside)
	}
	return exposed, bindings
}

// publishedIP is the address to publish a port on; the zero value means all.
func publishedIP(p driver.Port) netip.Addr {
	ip, _ := netip.ParseAddr(p.HostIP) // check has validated it
	return ip
}

const (
	holderTries = 30
	holderPause = 100 * time.Millisecond
)

// findNameHolder returns the container that has the name if it is this server's, which
// another leader created meanwhile, and else an error. Docker reserves the name
// before the container becomes visible, so holder retries for a while.
func (d *Driver) findNameHolder(ctx context.Context, spec driver.ServerSpec, name string) (instance, error) {
	for range holderTries {
		if r, err := d.findInstance(ctx, spec.Target); !errors.Is(err, driver.ErrNotFound) {
			return r, err
		}
		other, err := d.inspectContainer(ctx, name)
		switch {
		case err == nil && (other.uid != spec.UID || other.cluster != d.ClusterID):
			return instance{}, nameConflict(other)
		case err == nil:
			return other, nil
		case !isGone(err):
			return instance{}, err
		}
		if err := d.waitFor(ctx, holderPause); err != nil {
			return instance{}, err
		}
	}
	return instance{}, driver.Errorf(driver.ErrRetry, "the container name %s is taken by a creation under way", name)
}

func nameConflict(other instance) error {
	whose := "is not Drover's"
	if other.cluster != "" {
		whose = fmt.Sprintf("belongs to VirtualMachine %s/%s of UID %s in the cluster %s", other.namespace, other.vmName, other.uid, other.cluster)
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"container %s has the name %s, which this server needs, and %s: rename or remove it, it is left alone", shortID(other.id), other.name, whose))
}

// waitFor pauses for a short time, or until ctx ends.
func (d *Driver) waitFor(ctx context.Context, pause time.Duration) error {
	timer := d.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return driver.Errorf(driver.ErrRetry, "out of time: %w", ctx.Err())
	}
}
