// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// maxNodeReads limits how many nodes a list reads one by one. Tenants can make pods of any number of nodes
// that do not exist, which must not delay the list of all servers.
const maxNodeReads = 4

// nodeState is the node of a pod, as far as it was read.
type nodeState struct {
	// object is nil if the node was not read or does not exist.
	object *corev1.Node
	// isUnknown is set if the node could not be read, so that no assertion counts.
	isUnknown bool
	// isRead is set if the node was read because it may be lost.
	isRead bool
}

// isReady reports whether the node is known to be ready.
func (n nodeState) isReady() bool { return n.object != nil && ends.IsNodeReady(n.object) }

// lostError returns an error if the node of a pod does not report, so that the machine may or may not run.
func (n nodeState) lostError(p *corev1.Pod) error {
	isLost := isCutOff(p)
	if n.isRead && !n.isUnknown {
		isLost = !n.isReady()
	}
	if !isLost {
		return nil
	}
	return fmt.Errorf("node %s does not report: the machine may run still%s", p.Spec.NodeName, refusalText(p))
}

// reasonGatesNotReady is the kubelet's reason for a pod that only its readiness gates keep from being ready.
const reasonGatesNotReady = "ReadinessGatesNotReady"

// isCutOff reports whether the control plane has marked a running pod as not ready, as it does when the
// kubelet of its node stops reporting. A pod with the kubelet's reason for a false readiness gate, which a
// webhook may have added, is not cut off. A pod whose probe failed before cannot be recognized, since both
// conditions are false, but its VirtualMachine is not ready by the same probe.
func isCutOff(p *corev1.Pod) bool {
	return mayBeCutOff(p) && objects.FindCondition(p, corev1.PodReady).Reason != reasonGatesNotReady
}

// mayBeCutOff reports whether a pod is not ready although its containers are. Only its node tells whether
// it is lost, since a pod with a false readiness gate looks the same before and after the loss.
func mayBeCutOff(p *corev1.Pod) bool {
	ready, containers := objects.FindCondition(p, corev1.PodReady), objects.FindCondition(p, corev1.ContainersReady)
	return ready != nil && containers != nil && ready.Status == corev1.ConditionFalse && containers.Status == corev1.ConditionTrue
}

// readNode reads the node of the pod if resetNode says that it is needed.
func (i *Instance) readNode(ctx context.Context) (err error) {
	if name := i.resetNode(false); name != "" {
		i.node.object, err = i.reader.getNode(ctx, name)
		i.node.isUnknown = err != nil
	}
	return err
}

// resetNode reads what an operator asserts now, and returns the name of the node that has to be read, ""
// for none. An assertion is on the VirtualMachine or is a taint of the node, which deletes only pods that
// do not tolerate it.
//
// Complete lists are rare, so they also read the nodes of pods that start and of pods whose boot is not
// recorded yet. Nothing else shows that the first are lost, or when the second can be recorded.
func (i *Instance) resetNode(isComplete bool) (name string) {
	i.node, i.Asserted = nodeState{}, ""
	if i.reader.PodAssertedOff != nil {
		i.Asserted = i.reader.PodAssertedOff(i.UID)
	}
	p := i.Pod
	switch {
	case p == nil:
		return ""
	case p.UID == i.Asserted:
	case ends.ProvenEnd(p) != nil:
		return ""
	case p.DeletionTimestamp != nil, mayBeCutOff(p), ends.HasLostMachine(p), isComplete && !i.reader.hasGuest(p):
	case (isComplete || i.recordsBoot) && ends.LacksBoot(p):
		return p.Spec.NodeName
	default:
		return ""
	}
	i.node.isRead = p.Spec.NodeName != ""
	return p.Spec.NodeName
}

// readNodes reads the nodes that pods need. If one cannot be read, that is logged and proves nothing about
// its pods: they may run.
func (r *Reader) readNodes(ctx context.Context, all []*Instance, isComplete bool) {
	wanted := map[string][]*Instance{}
	for _, i := range all {
		if name := i.resetNode(isComplete); name != "" {
			wanted[name] = append(wanted[name], i)
		}
	}
	read := r.getNode
	if len(wanted) > maxNodeReads {
		read = r.listNodes(ctx, wanted)
	}
	var failed error
	for name, of := range wanted {
		node, err := read(ctx, name)
		for _, i := range of {
			i.node.object, i.node.isUnknown = node, err != nil
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		r.Log.Info("Nodes cannot be read, so whether their machines are off is unknown", "cause", failed.Error())
	}
}

// getNode reads a node. It returns nil if there is none of that name.
func (r *Reader) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := r.Client.Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		node = nil
	}
	return node, objects.Explain("read", "Node", types.NamespacedName{Name: name}, objects.IgnoreNotFound(err))
}

// listNodes lists all nodes live, and returns a function that returns what getNode would for the wanted
// ones.
func (r *Reader) listNodes(ctx context.Context, wanted map[string][]*Instance) func(context.Context, string) (*corev1.Node, error) {
	found := map[string]*corev1.Node{}
	list := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return r.Client.Nodes().List(ctx, o)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		if n, ok := o.(*corev1.Node); ok && wanted[n.Name] != nil {
			found[n.Name] = n
		}
		return nil
	})
	err = objects.Explain("list", "Node", types.NamespacedName{}, err)
	return func(_ context.Context, name string) (*corev1.Node, error) {
		if err != nil {
			return nil, err
		}
		return found[name], nil
	}
}
