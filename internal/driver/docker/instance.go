// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
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
	cpuMilli, memory      int64
	restartPolicy         container.RestartPolicyMode
	stopSignal            string
	image, ports          string // as requested at creation
	imageID               string // the engine's digest of the image
	rootDisk              int64  // as requested at creation
	addresses             []string
	published             []driver.Port // on the host, while it runs
	inspectErr            error         // set if the engine lists it but cannot inspect it
}

func (d *Driver) newInstance(in container.InspectResponse) *instance {
	i := &instance{driver: d, id: in.ID, name: strings.TrimPrefix(in.Name, "/"), imageID: in.Image}
	if in.Config != nil {
		i.readLabels(in.Config.Labels)
		i.stopSignal = in.Config.StopSignal
	}
	if s := in.State; s != nil {
		i.state, i.exitCode, i.oomKilled = s.Status, s.ExitCode, s.OOMKilled
		i.startedAt, i.finishedAt = parseTime(s.StartedAt), parseTime(s.FinishedAt)
	}
	if h := in.HostConfig; h != nil {
		i.cpuMilli, i.memory, i.restartPolicy = h.NanoCPUs/1e6, h.Memory, h.RestartPolicy.Name
	}
	if n := in.NetworkSettings; n != nil {
		i.addresses = networkAddresses(n.Networks)
		i.published = publishedPorts(n.Ports)
	}
	return i
}

// instanceFromSummary makes an instance of a list entry, which has few fields.
func (d *Driver) instanceFromSummary(s container.Summary) *instance {
	i := &instance{driver: d, id: s.ID, name: summaryName(s), state: s.State, imageID: s.ImageID}
	i.readLabels(s.Labels)
	if s.NetworkSettings != nil {
		i.addresses = networkAddresses(s.NetworkSettings.Networks)
	}
	return i
}

func (i *instance) readLabels(l map[string]string) {
	i.uid, i.namespace, i.vmName = types.UID(l[LabelUID]), l[LabelNamespace], l[LabelName]
	i.cluster, i.image, i.ports = l[LabelCluster], l[LabelImage], l[LabelPorts]
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

// parseTime returns zero for the text that Docker uses for an absent time.
func parseTime(text string) time.Time {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil || t.Year() <= 1 {
		return time.Time{}
	}
	return t
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
		Retained:  isRetained(i.name),
		Note:      i.rootDiskNote(),
		Err:       i.inspectErr,
	}
	if stop, ok := i.requestedStop(); ok {
		s.State, s.Progress, s.Exit = driver.StateStopping, stop.String(), nil
	} else if !s.Retained {
		s.Progress = i.driver.fetches.Progress(i.uid)
	}
	return s
}

func (i *instance) rootDiskNote() string {
	size, ok := i.driver.rootDisks.Load(i.id)
	if !ok {
		size = i.rootDisk
	}
	if size <= 0 {
		return ""
	}
	return "rootDisk " + formatBytes(size) + " is not enforced: most Docker storage drivers cannot limit it"
}

// goneError is the error for a container that disappeared during a call.
func (i *instance) goneError() error {
	return driver.Errorf(driver.ErrRetry, "container %s disappeared during the call", engine.ShortID(i.id))
}
