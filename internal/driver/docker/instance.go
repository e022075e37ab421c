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
)

// instance is what Drover knows about a container.
type instance struct {
	id, name              string
	uid                   types.UID
	cluster               string
	namespace, vmName         string
	state                 container.ContainerState
	startedAt, finishedAt time.Time
	exitCode              int
	oomKilled             bool
	cpuMilli, memory      int64
	restart               container.RestartPolicyMode
	stopSignal            string
	image, ports          string // as requested at creation
	imageID               string // the engine's digest of the image
	rootDisk              int64  // as requested at creation
	addresses             []string
	published             []driver.Port // on the host, while it runs
	unresponsive          error         // the error of inspecting it
}

func newInstance(in container.InspectResponse) instance {
	r := instance{id: in.ID, name: strings.TrimPrefix(in.Name, "/"), imageID: in.Image}
	if in.Config != nil {
		r.readLabels(in.Config.Labels)
		r.stopSignal = in.Config.StopSignal
	}
	if s := in.State; s != nil {
		r.state, r.exitCode, r.oomKilled = s.Status, s.ExitCode, s.OOMKilled
		r.startedAt, r.finishedAt = parseTime(s.StartedAt), parseTime(s.FinishedAt)
	}
	if h := in.HostConfig; h != nil {
		r.cpuMilli, r.memory, r.restart = h.NanoCPUs/1e6, h.Memory, h.RestartPolicy.Name
	}
	if n := in.NetworkSettings; n != nil {
		r.addresses = networkAddresses(n.Networks)
		r.published = publishedPorts(n.Ports)
	}
	return r
}

// instanceFromSummary makes a record of a list entry, which has few fields.
func instanceFromSummary(s container.Summary) instance {
	r := instance{id: s.ID, name: summaryName(s), state: s.State, imageID: s.ImageID}
	r.readLabels(s.Labels)
	if s.NetworkSettings != nil {
		r.addresses = networkAddresses(s.NetworkSettings.Networks)
	}
	return r
}

func (r *instance) readLabels(l map[string]string) {
	r.uid, r.namespace, r.vmName = types.UID(l[LabelUID]), l[LabelNamespace], l[LabelName]
	r.cluster, r.image, r.ports = l[LabelCluster], l[LabelImage], l[LabelPorts]
	r.rootDisk, _ = strconv.ParseInt(l[LabelRootDisk], 10, 64)
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
	for inside, bindings := range published {
		for _, b := range bindings {
			outside, err := strconv.ParseUint(b.HostPort, 10, 16)
			if err != nil || outside == 0 || inside.Proto() == network.SCTP {
				continue
			}
			ports = append(ports, driver.Port{
				Protocol: strings.ToUpper(string(inside.Proto())), Port: int32(inside.Num()), HostPort: int32(outside), HostIP: addressText(b.HostIP),
			})
		}
	}
	slices.SortFunc(ports, func(a, b driver.Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.HostPort, b.HostPort), cmp.Compare(a.HostIP, b.HostIP))
	})
	return slices.Compact(ports)
}

// addressText is empty if ip means all addresses.
func addressText(ip netip.Addr) string {
	if !ip.IsValid() || ip.IsUnspecified() {
		return ""
	}
	return ip.String()
}

// isActive reports whether a run has to end before another can begin.
func (r instance) isActive() bool {
	return r.state == container.StateRunning || r.state == container.StatePaused || r.state == container.StateRestarting
}

// runID has a new value at every start, and no two containers share one.
func (r instance) runID() string {
	if r.startedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf("%s-%d", shortID(r.id), r.startedAt.UnixNano())
}

func (r instance) serverState() driver.State {
	switch r.state {
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

func (r instance) exitStatus() *driver.Exit {
	over := r.state == container.StateExited || r.state == container.StateDead || r.state == container.StateRestarting
	if !over || r.startedAt.IsZero() {
		return nil
	}
	e := &driver.Exit{Code: r.exitCode, Reason: "Error", At: r.finishedAt}
	switch {
	case r.oomKilled:
		e.Reason = "OOMKilled"
	case r.exitCode == 0:
		e.Reason = "Completed"
	}
	return e
}

// serverOf converts the record to a driver.Server.
func (d *Driver) serverOf(r instance) driver.Server {
	s := driver.Server{
		UID: r.uid, ID: r.id, Namespace: r.namespace, Name: r.vmName,
		Run: r.runID(), State: r.serverState(), Exit: r.exitStatus(), StartedAt: r.startedAt,
		Applied:   driver.Resources{CPUMilli: r.cpuMilli, MemoryBytes: r.memory},
		ImageID:   r.imageID,
		Addresses: r.addresses,
		Ports:     r.published,
		Retained:  isRetained(r.name),
		Note:      d.notes.of(r),
		Err:       r.unresponsive,
	}
	if stop, ok := d.stops.of(r); ok {
		s.State, s.Progress = driver.StateStopping, stop.String()
	} else if !s.Retained {
		s.Progress = d.fetches.Progress(r.uid)
	}
	return s
}
