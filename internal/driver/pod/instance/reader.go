// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance reads the objects of servers, and says what they prove: whether a pod has ended
// for sure, and what state its server is in. It changes nothing.
//
// Start with Instance in instance.go, which a Reader returns. proof.go tells when a pod has ended,
// state.go describes a server, list.go finds the objects of all servers, informers.go follows them,
// and disks.go and budgets.go have their PVCs and PodDisruptionBudgets.
package instance

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	policyv1client "k8s.io/client-go/kubernetes/typed/policy/v1"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// Reader reads the objects of servers.
type Reader struct {
	// ClusterID is the label of the objects to read.
	ClusterID string
	// Client reaches the cluster.
	Client corev1client.CoreV1Interface
	// Policy reaches the PodDisruptionBudgets of that cluster.
	Policy policyv1client.PolicyV1Interface
	// Owner returns the VirtualMachine of a UID as far as one is known. Nil knows none.
	Owner func(types.UID) (types.NamespacedName, bool)
	// AssertedOff returns the pod of a VirtualMachine whose machine an operator has asserted to be
	// off. Nil knows none.
	AssertedOff func(types.UID) types.UID
	// LastStatus returns what the machine in a pod was last seen to do, if that is known.
	LastStatus func(pod types.UID) (control.Status, bool)
	Clock      clock.PassiveClock
	Log        logr.Logger

	// Watched are the informers of the watch that was opened last, nil if none is open.
	Watched atomic.Pointer[Informers]
	// pods and claims are the latest versions that were read live or written.
	pods, claims atomic.Uint64
	// lastLiveList is when the last complete list began that was live.
	lastLiveList atomic.Pointer[time.Time]
}

// New returns the instance of a spec, of which nothing was read yet.
func (r *Reader) New(spec driver.ServerSpec) *Instance {
	i := &Instance{
		reader: r, UID: spec.UID, VM: spec.Name, isEphemeral: spec.Ephemeral,
		Key: types.NamespacedName{Namespace: spec.Namespace, Name: objects.BaseName(spec.Name, spec.UID)},
	}
	for _, v := range spec.Volumes {
		i.names = append(i.names, v.Name)
	}
	return i
}

// ReadPod returns the instance of a pod that was read, and of nothing else.
func (r *Reader) ReadPod(ctx context.Context, p *corev1.Pod) (*Instance, error) {
	i := &Instance{
		reader: r, UID: types.UID(p.Labels[objects.LabelUID]), Pod: p,
		Key: types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
	}
	return i, i.readNode(ctx, r.newNodeGetter())
}

// nodeGetter returns a node, nil if there is none of that name.
type nodeGetter func(ctx context.Context, name string) (*corev1.Node, error)

// newNodeGetter returns one that reads each node once.
func (r *Reader) newNodeGetter() nodeGetter {
	read := map[string]*corev1.Node{}
	return func(ctx context.Context, name string) (*corev1.Node, error) {
		if node, known := read[name]; known {
			return node, nil
		}
		node, err := r.Client.Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			node = nil
		}
		if err = objects.Explain("read", "Node", types.NamespacedName{Name: name}, objects.IgnoreNotFound(err)); err == nil {
			read[name] = node
		}
		return node, err
	}
}

// Find reads the objects of a server. It returns ErrNotFound if there are none.
func (r *Reader) Find(ctx context.Context, t driver.Target) (*Instance, error) {
	key, vm, err := r.keyOf(ctx, t)
	if err != nil {
		return nil, err
	}
	i := &Instance{reader: r, Key: key, UID: t.UID, VM: vm}
	if err := i.readPod(ctx); err != nil {
		return nil, err
	}
	if err := i.listClaims(ctx); err != nil {
		return nil, err
	}
	i.isEphemeral = i.Pod != nil && objects.IsEphemeral(i.Pod) && i.Root == nil
	if !i.Exists() {
		return nil, driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
	}
	return i, nil
}

// keyOf returns where the objects of a server are: as its owner says, else as its objects say,
// whose labels select them.
func (r *Reader) keyOf(ctx context.Context, t driver.Target) (key types.NamespacedName, vm string, err error) {
	if owner, known := r.OwnerOf(t.UID); known {
		key, vm = types.NamespacedName{Namespace: owner.Namespace, Name: objects.BaseName(owner.Name, t.UID)}, owner.Name
	} else {
		listed, err := r.List(ctx, t.UID)
		switch {
		case err != nil:
			return key, "", err
		case len(listed) == 0:
			return key, "", driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
		case len(listed) > 1 && t.ID == "":
			return key, "", driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry, "%s and %s both claim the UID %s: remove the wrong one", listed[0].ID(), listed[1].ID(), t.UID))
		}
		n := max(0, slices.IndexFunc(listed, func(i *Instance) bool { return i.ID() == t.ID }))
		key, vm = listed[n].Key, listed[n].VM
	}
	if id := objects.ServerID(key.Namespace, key.Name); t.ID != "" && t.ID != id {
		return key, "", driver.Errorf(driver.ErrNotFound, "the server of UID %s is %s, not %s", t.UID, id, t.ID)
	}
	return key, vm, nil
}

// OwnerOf returns the VirtualMachine of a UID as far as one is known.
func (r *Reader) OwnerOf(uid types.UID) (types.NamespacedName, bool) {
	if r.Owner == nil {
		return types.NamespacedName{}, false
	}
	return r.Owner(uid)
}
