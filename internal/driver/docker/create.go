// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/internal/driver/docker/volumes"
	"cloudnative.tw/drover/internal/driver/kit"
)

// createServer makes the container of a UID that has none, or returns nil while its image is
// pulled. It does not check for the image first: the engine refuses to create one without.
func (d *Driver) createServer(ctx context.Context, spec driver.ServerSpec) (*instance, error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return nil, err
	}
	if spec.Image.PullPolicy != driver.PullAlways && len(d.fetches.PendingServers(spec.UID)) == 0 {
		i, err := d.createInstance(ctx, spec)
		if driver.ReasonOf(err) != driver.ReasonImageUnavailable {
			return i, err
		}
	}
	if waits, err := d.ensureImage(ctx, spec); waits || err != nil {
		return nil, err
	}
	return d.createInstance(ctx, spec)
}

// checkCapacity compares the spec with the host's capacity before the engine is called:
// Docker refuses too many CPUs with a text that does not name the field, and accepts any amount of memory.
func (d *Driver) checkCapacity(ctx context.Context, spec driver.ServerSpec) error {
	host, err := d.engine.Machine(ctx)
	switch {
	case err != nil:
		return err
	case spec.CPUMilli > int64(host.CPUs)*1000:
		return driver.Errorf(driver.ErrExhausted, "spec.resource.cpu: %s needed, the Docker host has %d", formatCPU(spec.CPUMilli), host.CPUs)
	case host.Memory > 0 && spec.MemoryBytes > host.Memory:
		return driver.Errorf(driver.ErrExhausted, "spec.resource.memory: %s needed, the Docker host has %s", kit.FormatBytes(spec.MemoryBytes), kit.FormatMegabytes(host.Memory))
	}
	return nil
}

// createInstance creates a container.
func (d *Driver) createInstance(ctx context.Context, spec driver.ServerSpec) (*instance, error) {
	host, err := d.engine.Machine(ctx)
	if err != nil {
		return nil, err
	}
	image, name := d.Options.imageReference(spec), containerName(spec)
	options := d.Options.createOptions(spec, name, image)
	options.HostConfig.LogConfig = limitedLog(host.LogDriver, d.logSize, d.Options.LogFiles)
	var id string
	err = d.engine.Change(ctx, "create container "+name, func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerCreate(ctx, options)
		id = res.ID
		return err
	})
	if errdefs.IsConflict(err) {
		return d.findNameHolder(ctx, spec, name)
	}
	if err != nil {
		return nil, explainCreate(spec, image, err)
	}
	d.fetches.ReleaseExcept(spec.UID)
	i := newInstance(d, container.InspectResponse{
		ID: id, Name: name, Config: options.Config, HostConfig: options.HostConfig, State: &container.State{Status: container.StateCreated},
	})
	if spec.Power != driver.PowerOff {
		return i, nil // it is inspected after its start
	}
	return i, i.inspectAgain(ctx)
}

// imageReference returns the image reference of the spec, or the default.
func (o Options) imageReference(spec driver.ServerSpec) string {
	return cmp.Or(spec.Image.Source, o.Image)
}

func containerLabels(spec driver.ServerSpec, cluster, image string) map[string]string {
	return map[string]string{
		LabelUID:       string(spec.UID),
		LabelNamespace: spec.Namespace,
		LabelName:      spec.Name,
		LabelCluster:   cluster,
		LabelEpoch:     strconv.FormatUint(spec.Epoch, 10),
		LabelImage:     image,
		LabelPorts:     portsText(spec.Ports),
		LabelVolumes:   volumes.Text(spec),
		LabelRootDisk:  strconv.FormatInt(spec.RootDiskBytes, 10),
	}
}

// portsText writes ports in a fixed order, so that texts can be compared. A port's
// name is used only by Drover and is left out.
func portsText(ports []driver.Port) string {
	texts := make([]string, 0, len(ports))
	for _, p := range ports {
		texts = append(texts, fmt.Sprintf("%d/%s:%d@%s", p.Port, portProtocol(p), p.HostPort, p.HostIP))
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}

func portProtocol(p driver.Port) string {
	return strings.ToLower(cmp.Or(p.Protocol, "tcp"))
}

// containerName is for people. Its uniqueness matters only against a second leader
// that creates the same server at the same time.
func containerName(spec driver.ServerSpec) string {
	uid := string(spec.UID)
	return namePart(spec.Name, 63) + "." + namePart(spec.Namespace, 63) + "." + namePart(uid, 8)
}

var invalidInNames = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// namePart makes s valid in a container name. The rules of the API leave little to
// replace.
func namePart(s string, limit int) string {
	s = invalidInNames.ReplaceAllString(s, "-")
	if s == "" || strings.ContainsRune("_.-", rune(s[0])) {
		s = "x" + s
	}
	return s[:min(len(s), limit)]
}

var validHostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// containerHostname is the VM's name, as for a Pod; empty lets Docker choose.
func containerHostname(name string) string {
	if validHostname.MatchString(name) {
		return name
	}
	return ""
}

func (o Options) createOptions(spec driver.ServerSpec, name, image string) client.ContainerCreateOptions {
	exposed, bindings := portMaps(spec.Ports)
	limits := resourceLimits(spec)
	if o.PIDs > 0 {
		limits.PidsLimit = &o.PIDs
	}
	config := &container.Config{
		Image:        image,
		Hostname:     containerHostname(spec.Name),
		Labels:       containerLabels(spec, o.ClusterID, image),
		ExposedPorts: exposed,
	}
	process.Configure(config, spec)
	return client.ContainerCreateOptions{
		Name:   name,
		Config: config,
		HostConfig: &container.HostConfig{
			Resources:     limits,
			RestartPolicy: container.RestartPolicy{Name: restartPolicy(spec.RestartPolicy)},
			PortBindings:  bindings,
			Init:          process.WantsInit(spec),
			Sysctls:       process.SysctlsOf(spec),
			Mounts:        volumes.MountsOf(spec, map[string]string{LabelUID: string(spec.UID), LabelCluster: o.ClusterID}),
		},
	}
}

// limitedLog limits the log of a container where the engine's log driver keeps it in files. Any
// other driver refuses these options, and the engine bounds what it keeps beside one itself.
func limitedLog(logDriver string, size int64, files int) container.LogConfig {
	if size == 0 || logDriver != "json-file" && logDriver != "local" {
		return container.LogConfig{}
	}
	return container.LogConfig{Type: logDriver, Config: map[string]string{
		"max-size": strconv.FormatInt(size, 10), "max-file": strconv.Itoa(files),
	}}
}

// resourceLimits returns the limits that the spec names, which can change at any time. They allow no
// swap: MemorySwap is the sum of memory and swap.
func resourceLimits(spec driver.ServerSpec) container.Resources {
	return container.Resources{NanoCPUs: spec.CPUMilli * 1e6, Memory: spec.MemoryBytes, MemorySwap: spec.MemoryBytes}
}

func restartPolicy(p driver.RestartPolicy) container.RestartPolicyMode {
	switch p {
	case driver.RestartOnFailure:
		return container.RestartPolicyOnFailure
	case driver.RestartNever:
		return container.RestartPolicyDisabled
	default: // RestartAlways
		return container.RestartPolicyUnlessStopped
	}
}

// portMaps publishes ports, on all addresses of the host if none is given. An empty
// host port lets the engine choose.
func portMaps(ports []driver.Port) (network.PortSet, network.PortMap) {
	exposed, bindings := network.PortSet{}, network.PortMap{}
	for _, p := range ports {
		port, ok := network.PortFrom(uint16(p.Port), network.IPProtocol(portProtocol(p))) //nolint:gosec // the API allows 1 to 65535
		if !ok {
			continue
		}
		binding := network.PortBinding{HostIP: publishedIP(p)}
		if p.HostPort != 0 {
			binding.HostPort = strconv.Itoa(int(p.HostPort))
		}
		exposed[port] = struct{}{}
		bindings[port] = append(bindings[port], binding)
	}
	return exposed, bindings
}

// publishedIP returns the address to publish a port on; the zero value means all.
func publishedIP(p driver.Port) netip.Addr {
	ip, _ := netip.ParseAddr(p.HostIP) // the CRD has validated it
	return ip
}

var (
	diskFull      = regexp.MustCompile(`no space left on device`)
	cpuOutOfRange = regexp.MustCompile(`(?i)range of CPUs is from`)
)

// explainCreate classifies the engine's refusal to create a container.
func explainCreate(spec driver.ServerSpec, image string, err error) error {
	text := err.Error()
	if fault := process.Fault(spec, image, text); fault != nil {
		return fault
	}
	switch {
	case errdefs.IsNotFound(err):
		return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "image %s: %w", image, err))
	case diskFull.MatchString(text), cpuOutOfRange.MatchString(text):
		return driver.Errorf(driver.ErrExhausted, "%w", err)
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "the engine refuses %s/%s: %w", spec.Namespace, spec.Name, err)
	}
	return err
}

const (
	nameHolderTries = 30
	nameHolderPause = 100 * time.Millisecond
)

// findNameHolder returns the container that has the name, if that is this server's:
// another leader has just created it. Any other holder is an error. Docker reserves the
// name before the container becomes visible, so this retries for a while.
func (d *Driver) findNameHolder(ctx context.Context, spec driver.ServerSpec, name string) (*instance, error) {
	for range nameHolderTries {
		if i, err := d.findInstance(ctx, spec.Target); !errors.Is(err, driver.ErrNotFound) {
			return i, err
		}
		other, err := d.inspectContainer(ctx, name)
		switch {
		case err == nil && (other.uid != spec.UID || other.cluster != d.Options.ClusterID):
			return nil, nameConflictError(other)
		case err == nil:
			return other, nil
		case !errdefs.IsNotFound(err):
			return nil, err
		}
		if err := kit.Pause(ctx, d.Options.Clock, nameHolderPause); err != nil {
			return nil, driver.Errorf(driver.ErrRetry, "out of time: %w", err)
		}
	}
	return nil, driver.Errorf(driver.ErrRetry, "a creation under way has taken the container name %s", name)
}

func nameConflictError(other *instance) error {
	owner := "is not Drover's"
	if other.cluster != "" {
		owner = fmt.Sprintf("belongs to VirtualMachine %s/%s of UID %s in the cluster %s", other.namespace, other.vmName, other.uid, other.cluster)
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"container %s has the name %s, which this server needs, and %s: rename or remove it, it is left alone", engine.ShortID(other.id), other.name, owner))
}
