// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 says how a client reaches the consoles, logs, commands and ports of
// VirtualMachines. Streams are not API resources: Drover serves them below PathPrefix at a
// separate address, and `drover up` at the address of its kube-apiserver.
//
// Start with Path. A client finds the address in the ConfigMap of ConfigMapName, and sends
// its credentials only there.
package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Stream is a connection that a client can make to a server. A SubjectAccessReview authorizes
// it, for the subresource of virtualmachines with this name and the verb in its comment.
type Stream string

// The streams. Console, Exec and PortForward are WebSockets with the subprotocol Protocol;
// Log is a plain text response, and Interfaces and Decisions are JSON.
const (
	// Console is the serial console of a machine, or the main process of a container that has a
	// terminal. Verb create.
	Console Stream = "console"
	// Exec runs a command in the server; parameters as for pods/exec: command (repeated),
	// stdin, stdout, stderr, tty. A container and a machine of a container image also take env
	// (repeated, NAME=VALUE), user and workdir. Verb create.
	Exec Stream = "exec"
	// PortForward is one connection to the TCP port of the parameter port. Verb create.
	PortForward Stream = "portforward"
	// Log is the server's output; parameters as for pods/log: follow, previous, tailLines.
	// Verb get.
	Log Stream = "log"
	// Interfaces lists the network interfaces that the server itself sees, as an array of
	// objects with name, mac and addresses. With the parameter statistics=true it is
	// NetworkStatistics instead. Verb get.
	Interfaces Stream = "interfaces"
	// Decisions lists the last decisions of the controller about the VirtualMachine, which may be
	// gone: an object with replica, version, leads, since and decisions. Only the replica that
	// leads decides. The fields of a decision may change with each version. Verb get.
	Decisions Stream = "decisions"
)

// PathPrefix begins the path of every stream.
const PathPrefix = "/streams.cloudnative.tw/v1alpha1"

// Protocol is the subprotocol of WebSockets, which kubectl exec uses too: channel 0 is
// standard input, 1 output, 2 error output, 3 a metav1.Status at the end, 4 the
// terminal's size, 255 closes a channel.
const Protocol = "v5.channel.k8s.io"

// ConfigMapName is the ConfigMap in ConfigMapNamespace that says where streams are served.
// Only Drover may write it, and every authenticated user may read it.
const ConfigMapName = "drover-streams"

// ConfigMapNamespace exists in every cluster, whatever namespace Drover is installed in. If it
// could be missing, whoever creates it could make other users send their credentials to a
// server under the creator's control.
const ConfigMapNamespace = metav1.NamespaceSystem

// Keys of that ConfigMap.
const (
	// AddressKey is the URL of the streams' server, such as https://drover.example:9444. It is
	// empty where kube-apiserver itself serves them.
	AddressKey = "address"
	// CAKey has the CA certificates, in PEM, that verify the server's certificate.
	CAKey = "ca.crt"
	// DriversKey has the names of the drivers whose streams are served, separated by commas. If driver
	// pod is not among them, the API server itself serves the streams of pods.
	DriversKey = "drivers"
)

// Path returns the path of a stream of a VirtualMachine.
func Path(namespace, name string, s Stream) string {
	return strings.Join([]string{PathPrefix, "namespaces", namespace, "virtualmachines", name, string(s)}, "/")
}
