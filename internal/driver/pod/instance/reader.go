// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance reads the objects of servers, and says what they prove: whether a pod has certainly
// ended, and in which state its server is. It changes nothing.
//
// Start with Instance in instance.go, which a Reader returns. Package ends has the proofs that a pod has
// ended. state.go describes a server, and texts.go has the words for it.
// claims.go has the PVCs, nodes.go the nodes of pods, and budgets.go the PodDisruptionBudgets. list.go finds
// the objects of all servers, and informers.go follows them.
package instance

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
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
	// Owner returns the VirtualMachine of a UID if it is known. Nil knows none.
	Owner func(types.UID) (driver.Owner, bool)
	// PodAssertedOff returns the pod of a VirtualMachine, if an operator has asserted that the pod's
	// machine is off. Nil knows none.
	PodAssertedOff func(types.UID) types.UID
	// LastStatus returns the last observed status of the machine in a pod, if there is one.
	LastStatus func(pod types.UID) (control.Status, bool)
	// HasSecret reports whether a pod is known to have its Secret. Nil knows none.
	HasSecret func(pod types.UID) bool
	Clock     clock.PassiveClock
	Log       logr.Logger

	// Watched has the informers of the last opened watch, nil if none is open.
	Watched atomic.Pointer[Informers]
	// pods and claims are the latest versions that this process has read live or written.
	pods, claims atomic.Uint64
	// lastLiveList is when the last live and complete list began.
	lastLiveList atomic.Pointer[time.Time]
	// lackingBudget has the servers whose PodDisruptionBudget was missing or wrong in the last complete list and
	// was not ensured since.
	lackingBudget driver.SyncMap[types.UID, bool]
	// rejectedSince is when the kubelet's rejection of a pod was first seen.
	rejectedSince driver.SyncMap[types.UID, time.Time]
}

// New returns the instance of a spec before anything is read.
func (r *Reader) New(spec driver.ServerSpec) *Instance {
	i := r.newInstance(spec.UID, types.NamespacedName{Namespace: spec.Namespace, Name: spec.Name})
	i.isEphemeral, i.seenRun, i.recordsBoot = spec.Ephemeral, spec.SeenRun, true
	for _, v := range spec.Volumes {
		i.volumes = append(i.volumes, v.Name)
	}
	return i
}

// newInstance returns an instance without objects.
func (r *Reader) newInstance(uid types.UID, vm types.NamespacedName) *Instance {
	return &Instance{reader: r, UID: uid, VM: vm.Name, Claims: Claims{}, Key: types.NamespacedName{Namespace: vm.Namespace, Name: objects.BaseName(vm.Name, uid)}}
}

// ReadPod returns the instance of a pod that was read, and of no other object. Its method Read reads the
// pod again, and the PVC of the root disk.
func (r *Reader) ReadPod(ctx context.Context, p *corev1.Pod) (*Instance, error) {
	i := &Instance{
		reader: r, UID: types.UID(p.Labels[objects.LabelUID]), Pod: p, Claims: Claims{}, isEphemeral: objects.IsEphemeral(p),
		Key: types.NamespacedName{Namespace: p.Namespace, Name: p.Name},
	}
	return i, i.readNode(ctx)
}

// Find reads the objects of a server live, for a caller that removes or releases them. It returns
// ErrNotFound if there are none. It leaves out the PVCs of an ephemeral server that has a pod and is to be
// removed. That is safe since spec.ephemeral is immutable, and a server without a pod is read in full
// before the finalizer of the VirtualMachine is removed.
func (r *Reader) Find(ctx context.Context, t driver.Target, retain bool) (*Instance, error) {
	i, err := r.findObjects(ctx, t, retain)
	if err != nil {
		return nil, err
	}
	i.isEphemeral = i.Pod != nil && objects.IsEphemeral(i.Pod) && i.Claims.Root() == nil
	if !i.Exists() {
		return nil, driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
	}
	return i, nil
}

// findObjects reads the objects by the name of the VirtualMachine, or by their labels if the name is not known.
func (r *Reader) findObjects(ctx context.Context, t driver.Target, retain bool) (*Instance, error) {
	owner, known := r.OwnerOf(t.UID)
	if !known {
		i, err := r.findByLabels(ctx, t)
		if err != nil {
			return nil, err
		}
		return i, checkID(i, t)
	}
	i := r.newInstance(t.UID, owner.NamespacedName)
	if err := checkID(i, t); err != nil {
		return nil, err
	}
	if err := i.readPod(ctx); err != nil {
		return nil, err
	}
	if retain || i.mayHaveClaims() {
		return i, i.listClaims(ctx)
	}
	return i, nil
}

// findByLabels lists the objects with the labels of a server, live since it is a single one.
func (r *Reader) findByLabels(ctx context.Context, t driver.Target) (*Instance, error) {
	listed, err := r.listByLabels(ctx, t.UID)
	switch {
	case err != nil:
		return nil, err
	case len(listed) == 0:
		return nil, driver.Errorf(driver.ErrNotFound, "there is no pod and no PVC of UID %s", t.UID)
	case len(listed) > 1 && t.ID == "":
		return nil, driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry, "%s and %s both claim the UID %s: find out which one has the data, and remove the label %s from the objects of the other", listed[0].ID(), listed[1].ID(), t.UID, objects.LabelUID))
	}
	return listed[max(0, slices.IndexFunc(listed, func(i *Instance) bool { return i.ID() == t.ID }))], nil
}

// checkID returns ErrNotFound if the target names another server than this one.
func checkID(i *Instance, t driver.Target) error {
	if t.ID != "" && t.ID != i.ID() {
		return driver.Errorf(driver.ErrNotFound, "the server of UID %s is %s, not %s", t.UID, i.ID(), t.ID)
	}
	return nil
}

// OwnerOf returns the VirtualMachine of a UID if it is known.
func (r *Reader) OwnerOf(uid types.UID) (driver.Owner, bool) {
	if r.Owner == nil {
		return driver.Owner{}, false
	}
	return r.Owner(uid)
}
