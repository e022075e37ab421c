// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path"
	"path/filepath"

	"golang.org/x/sync/errgroup"

	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// Node is a node of a cluster.
type Node struct {
	// Name of the Node object.
	Name string
	// IP is the node's address, which this host can reach.
	IP string
	// Dir has the node's files and logs. Manifests of static pods belong in its folder manifests.
	Dir string

	cluster *Cluster
	index   int
}

// Node returns a node by its number, from 1.
func (c *Cluster) Node(i int) *Node {
	return &Node{Name: plan.NodeName(i), IP: c.plan.NodeIP(i), Dir: c.plan.NodePath(i), cluster: c, index: i}
}

// Nodes returns all nodes.
func (c *Cluster) Nodes() []*Node {
	var nodes []*Node
	for i := range c.plan.Nodes {
		nodes = append(nodes, c.Node(i+1))
	}
	return nodes
}

// NodeByName returns a node by its name, as in a pod's spec.nodeName.
func (c *Cluster) NodeByName(name string) (*Node, error) {
	for _, node := range c.Nodes() {
		if node.Name == name {
			return node, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q", name)
}

// HostIP is the address at which pods reach this host.
func (c *Cluster) HostIP() string { return c.plan.HostIP() }

// ControlGroup returns the path of a control group for a test. It is removed with the
// cluster.
func (c *Cluster) ControlGroup(name string) string { return path.Join("/", c.plan.Name, name) }

// PowerOff kills all processes of the node at once, like a loss of power.
func (n *Node) PowerOff() error { return n.post("power-off") }

// PowerOn starts a node that is off, and waits until its kubelet is started.
func (n *Node) PowerOn() error { return n.post("power-on") }

// CutLink disconnects the node from the network. Its processes keep running.
func (n *Node) CutLink() error { return n.post("cut-link") }

// RestoreLink undoes CutLink.
func (n *Node) RestoreLink() error { return n.post("restore-link") }

func (n *Node) post(verb string) error { return n.cluster.post(nodePath(n.index, verb)) }

// KillKubelet kills only the kubelet. Containers keep running.
func (n *Node) KillKubelet() error { return n.controlProcess("kubelet", "kill") }

// StartKubelet starts the kubelet after KillKubelet.
func (n *Node) StartKubelet() error { return n.controlProcess("kubelet", "start") }

// KillContainerd kills only containerd. Containers keep running.
func (n *Node) KillContainerd() error { return n.controlProcess("containerd", "kill") }

// StartContainerd starts containerd after KillContainerd.
func (n *Node) StartContainerd() error { return n.controlProcess("containerd", "start") }

// RestartKubelet kills the kubelet and starts it again.
func (n *Node) RestartKubelet() error { return errors.Join(n.KillKubelet(), n.StartKubelet()) }

// call sends a command to the process that controls the node.
func (n *Node) call(ctx context.Context, path string) error {
	if err := control.Post(ctx, n.cluster.plan.NodeSocket(n.index), path); err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	return nil
}

func (n *Node) controlProcess(name, verb string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return n.call(ctx, "/processes/"+name+"/"+verb)
}

// ImportImage imports the images of an archive, as docker save writes it. Pods use them
// with the pull policy Never or IfNotPresent.
func (n *Node) ImportImage(ctx context.Context, archive string) error {
	path, err := filepath.Abs(archive)
	if err != nil {
		return err
	}
	return n.call(ctx, "/import?archive="+url.QueryEscape(path))
}

// ImportImage imports the images of an archive on all nodes.
func (c *Cluster) ImportImage(ctx context.Context, archive string) error {
	var group errgroup.Group
	for _, node := range c.Nodes() {
		group.Go(func() error { return node.ImportImage(ctx, archive) })
	}
	return group.Wait()
}
