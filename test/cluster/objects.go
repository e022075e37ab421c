// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/kubectl/pkg/drain"
)

// OutOfService is the taint by which an operator asserts that a lost node runs nothing, so
// that Kubernetes removes its pods by force.
var OutOfService = corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoExecute}

// Drain cordons the node and evicts its pods except those of DaemonSets, like kubectl drain
// with --delete-emptydir-data --force. It waits until the pods are gone.
func (n *Node) Drain(ctx context.Context) error {
	node, err := n.get(ctx)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	helper := &drain.Helper{
		Ctx: ctx, Client: n.cluster.Client, GracePeriodSeconds: -1,
		Force: true, IgnoreAllDaemonSets: true, DeleteEmptyDirData: true, Out: &out, ErrOut: &out,
	}
	if err := drain.RunCordonOrUncordon(helper, node, true); err != nil {
		return err
	}
	if err := drain.RunNodeDrain(helper, n.Name); err != nil {
		return fmt.Errorf("drain %s: %w\n%s", n.Name, err, out.String())
	}
	return nil
}

// Cordon makes the node unschedulable.
func (n *Node) Cordon(ctx context.Context) error {
	return n.update(ctx, func(node *corev1.Node) { node.Spec.Unschedulable = true })
}

// Uncordon makes the node schedulable after Cordon or Drain.
func (n *Node) Uncordon(ctx context.Context) error {
	return n.update(ctx, func(node *corev1.Node) { node.Spec.Unschedulable = false })
}

// Taint adds a taint to the node.
func (n *Node) Taint(ctx context.Context, taint corev1.Taint) error {
	return n.update(ctx, func(node *corev1.Node) { node.Spec.Taints = append(node.Spec.Taints, taint) })
}

// Untaint removes the taints with a key.
func (n *Node) Untaint(ctx context.Context, key string) error {
	return n.update(ctx, func(node *corev1.Node) {
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
	})
}

// Delete deletes the Node object. The kubelet creates a new one only when it starts.
func (n *Node) Delete(ctx context.Context) error {
	return n.cluster.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{})
}

func (n *Node) get(ctx context.Context) (*corev1.Node, error) {
	return n.cluster.Client.CoreV1().Nodes().Get(ctx, n.Name, metav1.GetOptions{})
}

func (n *Node) update(ctx context.Context, change func(*corev1.Node)) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node, err := n.get(ctx)
		if err != nil {
			return err
		}
		change(node)
		_, err = n.cluster.Client.CoreV1().Nodes().Update(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

// IsReady reports whether the node is Ready.
func (n *Node) IsReady(ctx context.Context) (bool, error) {
	node, err := n.get(ctx)
	if err != nil {
		return false, err
	}
	return IsReady(node), nil
}

// IsReady reports whether a node is Ready.
func IsReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
