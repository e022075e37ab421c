// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// maxNodeReads is how many nodes a list reads one by one. Tenants can make pods of any number of nodes
// that do not exist, which must not delay the list of all servers.
const maxNodeReads = 4

// readNode reads the node of a pod that an operator may have asserted to be off.
func (i *Instance) readNode(ctx context.Context) (err error) {
	if name := i.resetNode(false); name != "" {
		i.node, err = i.reader.getNode(ctx, name)
		i.isNodeUnknown = err != nil
	}
	return err
}

// resetNode takes what an operator has asserted by now, and returns the node that has to be read, "" for
// none. An assertion is on the VirtualMachine, or a taint, which deletes the pod unless that tolerates
// it. The nodes of pods that start, and of those whose boot is not recorded yet, are read for complete lists,
// which are rare: nothing else shows that the first are lost, and when the others can be recorded.
func (i *Instance) resetNode(isComplete bool) (name string) {
	i.node, i.isNodeUnknown, i.isNodeRead, i.Asserted = nil, false, false, ""
	if i.reader.AssertedOff != nil {
		i.Asserted = i.reader.AssertedOff(i.UID)
	}
	p := i.Pod
	switch {
	case p == nil:
		return ""
	case p.UID == i.Asserted:
	case ProvenEnd(p) != nil:
		return ""
	case p.DeletionTimestamp != nil, mayBeCutOff(p), hasLostMachine(p), isComplete && !i.hasGuest():
	case (isComplete || i.recordsBoot) && i.lacksBoot():
		return p.Spec.NodeName
	default:
		return ""
	}
	i.isNodeRead = p.Spec.NodeName != ""
	return p.Spec.NodeName
}

// readNodes reads the nodes of pods that an operator may have asserted to be off. That one cannot be
// read is logged, and proves nothing about its pods: they may run.
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
			i.node, i.isNodeUnknown = node, err != nil
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		r.Log.Info("Nodes cannot be read, so whether their machines are off is unknown", "cause", failed.Error())
	}
}

// getNode reads a node, nil if there is none of that name.
func (r *Reader) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := r.Client.Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		node = nil
	}
	return node, objects.Explain("read", "Node", types.NamespacedName{Name: name}, objects.IgnoreNotFound(err))
}

// listNodes lists all nodes, live, and returns what getNode would return for those that are wanted.
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
