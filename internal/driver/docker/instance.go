// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/docker/process"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/image/health"
)

// instance is a container as it was last inspected. Its methods that change the
// container inspect it again.
type instance struct {
	driver                *Driver
	id, name              string
	uid                   types.UID
	cluster               string
	namespace, vmName     string
	state                 container.ContainerState
	startedAt, finishedAt time.Time
	exitCode              int
	oomKilled             bool
	health                container.HealthStatus // empty if the image does not define a check
	cpuMilli, memory      int64
	restartPolicy         container.RestartPolicyMode
	stopSignal            string
	image, ports, volumes string // as requested at creation
	process               process.Requested
	imageID               string // the engine's digest of the image
	rootDisk              int64  // as requested at creation
	addresses             []string
	published             []driver.Port // on the host, while it runs
	unpublished           []string      // declared by the image, while it runs
	inspectErr            error         // set if the engine lists it but cannot inspect it
}

// findInstance returns the one container of a UID.
func (d *Driver) findInstance(ctx context.Context, t driver.Target) (*instance, error) {
	s, err := d.findSummary(ctx, t)
	if err != nil {
		return nil, err
	}
	i, err := d.inspectContainer(ctx, s.ID)
	if errdefs.IsNotFound(err) {
		return nil, driver.Errorf(driver.ErrNotFound, "container %s is gone", engine.ShortID(s.ID))
	}
	return i, err
}

// findSummary finds it by the engine's list alone, which answers even for a container
// that is stuck.
func (d *Driver) findSummary(ctx context.Context, t driver.Target) (container.Summary, error) {
	own, err := d.listContainers(ctx, true, t.UID)
	switch {
	case err != nil:
		return container.Summary{}, err
	case len(own) > 1:
		return container.Summary{}, driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry,
			"containers %s and %s both carry the UID %s: remove the wrong one, neither is touched", own[0].ID, own[1].ID, t.UID))
	case len(own) == 0:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "there is no container of UID %s", t.UID)
	case t.ID != "" && t.ID != own[0].ID:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "the container of UID %s is %s, not %s", t.UID, engine.ShortID(own[0].ID), engine.ShortID(t.ID))
	}
	return own[0], nil
}

// listContainers lists this cluster's containers: all, or those of the given UIDs that
// were not released. The engine requires all of several label filters to match, so
// it can filter by one UID only.
func (d *Driver) listContainers(ctx context.Context, evenStopped bool, uids ...types.UID) ([]container.Summary, error) {
	filters := client.Filters{}.Add("label", LabelCluster+"="+d.Options.ClusterID)
	if len(uids) == 1 {
		filters.Add("label", uidFilter(uids[0]))
	}
	var all []container.Summary
	err := d.engine.Read(ctx, "list containers", func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerList(ctx, client.ContainerListOptions{All: evenStopped, Filters: filters})
		all = res.Items
		return err
	})
	if err != nil || len(uids) == 0 {
		return all, err
	}
	return slices.DeleteFunc(all, func(s container.Summary) bool {
		return isRetained(summaryName(s)) || !slices.Contains(uids, types.UID(s.Labels[LabelUID]))
	}), nil
}

// inspectContainer inspects one container. errdefs.IsNotFound is true of its error if
// there is none.
func (d *Driver) inspectContainer(ctx context.Context, id string) (*instance, error) {
	in, err := d.engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	return newInstance(d, in), nil
}

func newInstance(d *Driver, in container.InspectResponse) *instance {
	i := &instance{driver: d, id: in.ID, name: strings.TrimPrefix(in.Name, "/"), imageID: in.Image}
	if in.Config != nil {
		i.readLabels(in.Config.Labels)
		i.stopSignal, i.process = in.Config.StopSignal, process.RequestedOf(in.Config)
	}
	if s := in.State; s != nil {
		i.state, i.exitCode, i.oomKilled = s.Status, s.ExitCode, s.OOMKilled
		if s.Health != nil {
			i.health = s.Health.Status
		}
		i.startedAt, i.finishedAt = engine.ParseTime(s.StartedAt), engine.ParseTime(s.FinishedAt)
	}
	if h := in.HostConfig; h != nil {
		i.cpuMilli, i.memory, i.restartPolicy = h.NanoCPUs/1e6, h.Memory, h.RestartPolicy.Name
	}
	if n := in.NetworkSettings; n != nil {
		i.addresses = networkAddresses(n.Networks)
		i.published = publishedPorts(n.Ports)
		i.unpublished = unpublishedPorts(n.Ports, i.published)
	}
	return i
}

// instanceFromSummary makes an instance of a list entry, which has few fields.
func instanceFromSummary(d *Driver, s container.Summary) *instance {
	i := &instance{driver: d, id: s.ID, name: summaryName(s), state: s.State, imageID: s.ImageID}
	i.readLabels(s.Labels)
	if s.NetworkSettings != nil {
		i.addresses = networkAddresses(s.NetworkSettings.Networks)
	}
	return i
}

func (i *instance) readLabels(l map[string]string) {
	i.uid, i.namespace, i.vmName = types.UID(l[LabelUID]), l[LabelNamespace], l[LabelName]
	i.cluster, i.image, i.ports, i.volumes = l[LabelCluster], l[LabelImage], l[LabelPorts], l[LabelVolumes]
	if size, err := strconv.ParseInt(l[LabelRootDisk], 10, 64); err == nil {
		i.rootDisk = size
	}
}

// summaryName skips the aliases that links give to a container.
func summaryName(s container.Summary) string {
	for _, name := range s.Names {
		if name = strings.TrimPrefix(name, "/"); !strings.Contains(name, "/") {
			return name
		}
	}
	return ""
}

func networkAddresses(networks map[string]*network.EndpointSettings) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(networks)) {
		n := networks[name]
		if n == nil {
			continue
		}
		if n.IPAddress.IsValid() {
			all = append(all, n.IPAddress.String())
		}
		if n.GlobalIPv6Address.IsValid() {
			all = append(all, n.GlobalIPv6Address.String())
		}
	}
	return all
}

// unpublishedPorts returns the ports that only the image declares: the engine lists them without a port of the host.
func unpublishedPorts(exposed network.PortMap, published []driver.Port) []string {
	var declared []string
	for port := range exposed {
		declared = append(declared, port.String())
	}
	return kit.UnpublishedPorts(declared, published)
}

// publishedPorts merges the entries for IPv4 and IPv6, in a stable order.
func publishedPorts(published network.PortMap) []driver.Port {
	var ports []driver.Port
	for port, bindings := range published {
		for _, b := range bindings {
			hostPort, err := strconv.ParseUint(b.HostPort, 10, 16)
			if err != nil || hostPort == 0 || port.Proto() == network.SCTP {
				continue
			}
			ports = append(ports, driver.Port{
				Protocol: strings.ToUpper(string(port.Proto())), Port: int32(port.Num()), HostPort: int32(hostPort), HostIP: publishedOn(b, bindings),
			})
		}
	}
	slices.SortFunc(ports, func(a, b driver.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.HostIP, b.HostIP), cmp.Compare(a.HostPort, b.HostPort))
	})
	return slices.Compact(ports)
}

// publishedOn returns the address that a port is open on, or "" for all. Where the engine
// chose different ports for IPv4 and IPv6, each is open on all addresses of its family only,
// which 0.0.0.0 and :: stand for.
func publishedOn(b network.PortBinding, all []network.PortBinding) string {
	isOtherFamily := func(o network.PortBinding) bool {
		return o.HostIP.IsUnspecified() && o.HostIP.Is4() != b.HostIP.Is4()
	}
	isSamePort := func(o network.PortBinding) bool { return isOtherFamily(o) && o.HostPort == b.HostPort }
	if b.HostIP.IsUnspecified() && slices.ContainsFunc(all, isOtherFamily) && !slices.ContainsFunc(all, isSamePort) {
		return b.HostIP.String()
	}
	return addressText(b.HostIP)
}

// addressText returns "" if ip means all addresses.
func addressText(ip netip.Addr) string {
	if !ip.IsValid() || ip.IsUnspecified() {
		return ""
	}
	return ip.String()
}

// hasRun reports whether the container is running, paused or restarting: that run has
// to end before another can begin.
func (i *instance) hasRun() bool {
	return i.state == container.StateRunning || i.state == container.StatePaused || i.state == container.StateRestarting
}

// runID has a new value at every start, and no two containers share one.
func (i *instance) runID() string {
	if i.startedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s-%d", engine.ShortID(i.id), i.startedAt.UnixNano())
}

func (i *instance) serverState() driver.State {
	switch i.state {
	case container.StateRunning:
		return driver.StateRunning
	case container.StatePaused:
		return driver.StatePaused
	case container.StateRestarting:
		return driver.StateRestarting
	case container.StateRemoving:
		return driver.StateRemoving
	case container.StateCreated, container.StateExited, container.StateDead:
	}
	return driver.StateStopped
}

// observedState returns the container as kit.NextStep takes it.
func (i *instance) observedState() kit.Observed {
	stop, isStopping := i.requestedStop()
	return kit.Observed{State: i.serverState(), Run: i.runID(), IsStopping: isStopping, StopBy: stop.deadline}
}

func (i *instance) exitStatus() *driver.Exit {
	ended := i.state == container.StateExited || i.state == container.StateDead || i.state == container.StateRestarting
	if !ended || i.startedAt.IsZero() {
		return nil
	}
	e := &driver.Exit{Code: i.exitCode, Reason: "Error", At: i.finishedAt}
	switch {
	case i.oomKilled:
		e.Reason = "OOMKilled"
	case i.exitCode == 0:
		e.Reason = "Completed"
	}
	return e
}

// toServer converts the instance to a driver.Server.
func (i *instance) toServer() driver.Server {
	s := driver.Server{
		UID: i.uid, ID: i.id, Namespace: i.namespace, Name: i.vmName,
		Run: i.runID(), State: i.serverState(), Exit: i.exitStatus(), StartedAt: i.startedAt,
		Applied:   driver.Resources{CPUMilli: i.cpuMilli, MemoryBytes: i.memory},
		ImageID:   i.imageID,
		Addresses: i.addresses,
		Ports:     i.published,

		UnpublishedPorts: i.unpublished,
		Retained:         isRetained(i.name),
		Note:             i.rootDiskNote(),
		NotReady:         i.healthText(),
		Err:              i.inspectErr,
	}
	if stop, ok := i.requestedStop(); ok {
		s.State, s.Progress, s.Exit = driver.StateStopping, stop.String(), nil
	}
	return s
}

// healthText says why a container is not ready by its image's HEALTHCHECK.
func (i *instance) healthText() string {
	if i.state != container.StateRunning {
		return ""
	}
	return health.State(i.health).Explain()
}

func (i *instance) rootDiskNote() string {
	size, ok := i.driver.rootDisks.Load(i.id)
	if !ok {
		size = i.rootDisk
	}
	if size <= 0 {
		return ""
	}
	return "rootDisk " + kit.FormatBytes(size) + " is not enforced: most Docker storage drivers cannot limit it"
}

// goneError is the error for a container that disappeared during a call.
func (i *instance) goneError() error {
	return driver.Errorf(driver.ErrRetry, "container %s disappeared during the call", engine.ShortID(i.id))
}
