// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ServersPath is answered with a ServerList: all servers on the engines of the controller that
// answers. It needs the verb list on the subresource Servers of virtualmachines, in all
// namespaces.
const ServersPath = PathPrefix + "/" + Servers

// Servers is the subresource for ServersPath.
const Servers = "servers"

// ServerList has the servers of a cluster, driver by driver, as the engines have them now.
type ServerList struct {
	Drivers []DriverServers `json:"drivers"`
}

// DriverServers are the servers of a driver.
type DriverServers struct {
	Driver   string `json:"driver"`
	EngineID string `json:"engineID"`
	// Error says why the engine did not answer. Its servers are not known then.
	Error   string   `json:"error,omitempty"`
	Servers []Server `json:"servers"`
}

// Server is a container, machine or pod that an engine has for a VirtualMachine, which may be gone.
type Server struct {
	UID types.UID `json:"uid"`
	// ID is the engine's name for the server.
	ID string `json:"id"`
	// Namespace and Name of the VirtualMachine that the server was made for.
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	State     string    `json:"state"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	// Retained is set if the server was released.
	Retained bool `json:"retained,omitempty"`
	// MayBeOrphan is set if the server is an orphan unless a VirtualMachine has its UID.
	MayBeOrphan bool `json:"mayBeOrphan,omitempty"`
	// Error says why the server cannot be read.
	Error string `json:"error,omitempty"`
}

// OrphanApprovalsName is the ConfigMap of namespace kube-system in which a person approves the
// removal of orphans: its keys are UIDs, and the values the IDs of their servers. Approving
// takes the right to write in kube-system.
const OrphanApprovalsName = "drover-orphan-approvals"

// NetworkStatistics are the figures of a machine's network since its supervisor was started.
// In is the direction to the machine.
type NetworkStatistics struct {
	PacketsIn  int64 `json:"packetsIn"`
	BytesIn    int64 `json:"bytesIn"`
	PacketsOut int64 `json:"packetsOut"`
	BytesOut   int64 `json:"bytesOut"`
	// Dropped counts packets that were not relayed, such as malformed ones and those with a source
	// address that the machine does not have.
	Dropped int64 `json:"dropped"`
	// Connections counts open TCP connections, and Flows open flows of UDP and of pings.
	Connections int64 `json:"connections"`
	Flows       int64 `json:"flows"`
	// Refused counts the connections, packets and names that were refused. LastRefused has the
	// most recent ones, the newest last.
	Refused     int64            `json:"refused"`
	LastRefused []NetworkRefusal `json:"lastRefused,omitempty"`
}

// NetworkRefusal is a connection, packet or name that was refused to a machine.
type NetworkRefusal struct {
	// Protocol is tcp, udp, icmp or dns, or one of a later version.
	Protocol string `json:"protocol"`
	// Target is an address with a port, or a name.
	Target string `json:"target"`
	// Reason is Denied, NoEgress, Special, NoRoute, NoMachine, TooMany or NoAnswer, or one of a
	// later version.
	Reason string    `json:"reason"`
	Count  int64     `json:"count"`
	Last   time.Time `json:"last"`
}
