// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plan has the names, addresses and paths of a cluster, which all its processes
// derive from the same plan.
package plan

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"cloudnative.tw/drover/test/assert"
)

// Limits of a cluster.
const (
	// MaxNodes is how many nodes a cluster may have.
	MaxNodes = 9
	// Volumes is how many local volumes a node has.
	Volumes = 6
	// Slots is how many clusters a host may have at a time.
	Slots = 16
)

// Values that are the same in every cluster.
const (
	// ServiceCIDR has the addresses of Services.
	ServiceCIDR = "10.96.0.0/16"
	// KubernetesIP is the address of the Service kubernetes.
	KubernetesIP = "10.96.0.1"
	// ProbeImage is an image that every node has. Its programs are /pause, which runs
	// first in every pod, and /probe, for tests.
	ProbeImage = "drover.test/probe:1"
	// NamePrefix is the prefix of clusters' names.
	NamePrefix = "drover-cluster-"
	// APIPort is the port of kube-apiserver.
	APIPort = 6443
)

// Plan is the plan of a cluster.
type Plan struct {
	// Name of the cluster, and of its control groups.
	Name string `json:"name"`
	// Dir has all files of the cluster.
	Dir string `json:"dir"`
	// Binaries is the folder with the programs.
	Binaries string `json:"binaries"`
	// Nodes is the number of nodes. The first is node 1.
	Nodes int `json:"nodes"`
	// Slot determines the addresses. Clusters that run at the same time have different slots.
	Slot int `json:"slot"`
	// Simulated is set if a program simulates many more nodes.
	Simulated bool `json:"simulated,omitempty"`
	// Images are archives that every node imports when it starts.
	Images []string `json:"images,omitempty"`
}

// Read returns the plan of the cluster in a folder.
func Read(dir string) (Plan, error) {
	var p Plan
	content, err := os.ReadFile(filepath.Join(dir, "plan.json"))
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(content, &p); err != nil {
		return p, fmt.Errorf("read the plan of the cluster in %s: %w", dir, err)
	}
	return p, CheckName(p.Name)
}

// CheckName rejects names that no cluster can have. It protects the host, because the cleanup
// removes interfaces and control groups with their processes by the cluster's name.
func CheckName(name string) error {
	rest, ok := strings.CutPrefix(name, NamePrefix)
	return assert.ErrorUnless(ok && rest != "" && !strings.Contains(rest, "/"), "%q is not the name of a cluster", name)
}

// Write stores the plan in the cluster's folder.
func (p Plan) Write() error {
	content, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return os.WriteFile(p.Path("plan.json"), content, 0o600)
}

// HostLink is the name of the host's interface to the cluster.
func (p Plan) HostLink() string { return fmt.Sprintf("drover-c%d", p.Slot) }

func (p Plan) address(last int) string { return fmt.Sprintf("10.89.%d.%d", p.Slot, last) }

// ControlPlaneIP is the address of kube-apiserver.
func (p Plan) ControlPlaneIP() string { return p.address(1) }

// HostIP is the host's address as pods and nodes see it.
func (p Plan) HostIP() string { return p.address(254) }

// NodeIP is the address of a node.
func (p Plan) NodeIP(i int) string { return p.address(10 + i) }

// NodeMAC is the hardware address of a node. It is the same after a power cycle, because
// others have it in their caches.
func (p Plan) NodeMAC(i int) string { return fmt.Sprintf("02:00:0a:59:%02x:%02x", p.Slot, 10+i) }

// PodCIDR has the addresses of a node's pods.
func (p Plan) PodCIDR(i int) string { return fmt.Sprintf("10.%d.%d.0/24", 240+p.Slot, i) }

// Server is the URL of kube-apiserver.
func (p Plan) Server() string { return fmt.Sprintf("https://%s:%d", p.ControlPlaneIP(), APIPort) }

// NodeName is the name of a node.
func NodeName(i int) string { return "n" + strconv.Itoa(i) }

// Program is the path of a program.
func (p Plan) Program(name string) string { return filepath.Join(p.Binaries, name) }

// Path is a path in the cluster's folder.
func (p Plan) Path(elements ...string) string {
	return filepath.Join(append([]string{p.Dir}, elements...)...)
}

// NodePath is a path in a node's folder.
func (p Plan) NodePath(i int, elements ...string) string {
	return p.Path(append([]string{"nodes", NodeName(i)}, elements...)...)
}

// Kubeconfig of the cluster's administrator.
func (p Plan) Kubeconfig() string { return p.Path("kubeconfig") }

// Socket controls the cluster.
func (p Plan) Socket() string { return p.Path("control.sock") }

// NodeSocket controls a node's processes.
func (p Plan) NodeSocket(i int) string { return p.NodePath(i, "control.sock") }

// StartedFile exists once kube-apiserver has been ready.
func (p Plan) StartedFile() string { return p.Path("started") }

// NodeGroup is the control group of a node's pods, below the hierarchies' roots.
func (p Plan) NodeGroup(i int) string { return filepath.Join("/", p.Name, NodeName(i)) }
