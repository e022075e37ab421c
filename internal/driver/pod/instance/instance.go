// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Instance has the objects of one server.
type Instance struct {
	reader *Reader
	// Key has the namespace, and the name of the pod and of the root disk's PVC.
	Key types.NamespacedName
	UID types.UID
	VM  string
	// Pod is nil if there is none.
	Pod    *corev1.Pod
	Claims Claims
	// Asserted is the pod whose machine an operator has asserted to be off, as known when the objects were
	// read.
	Asserted types.UID

	// IsDeletedHere is set once the pod was deleted through this Instance.
	IsDeletedHere bool

	// Unlabelled are the objects that have the names of the server's, and not its labels, or the annotations
	// of a copy.
	Unlabelled []metav1.Object

	// seenRun is driver.ServerSpec.SeenRun.
	seenRun string

	// volumes are the names of the volumes whose PVCs are to be read.
	volumes []string
	// isEphemeral is set if the root disk of the server does not outlive its pod, so that there is no PVC.
	isEphemeral bool
	node        nodeState // of the pod
	// recordsBoot is set if the node of a running machine is to be read, so that its boot can be recorded.
	recordsBoot bool
}

// Read reads the objects live. Objects of these names that lack the labels are Unlabelled.
func (i *Instance) Read(ctx context.Context) error {
	i.Unlabelled = nil
	if err := i.readPod(ctx); err != nil || i.isEphemeral {
		return err
	}
	return i.readClaims(ctx, append([]string{objects.RootDisk}, i.volumes...))
}

// readPod reads the pod, and its node if that matters.
func (i *Instance) readPod(ctx context.Context) error {
	pod, err := i.reader.Client.Pods(i.Key.Namespace).Get(ctx, i.Key.Name, metav1.GetOptions{})
	if i.Pod, err = keepOwn(i, pod, err); err != nil {
		return objects.Explain("read", objects.KindPod, i.Key, err)
	}
	return i.readNode(ctx)
}

// Exists reports whether the server has any object.
func (i *Instance) Exists() bool { return i.Pod != nil || len(i.Claims.All()) > 0 }

// keepOwn returns an object that was read, or nil if it lacks the labels of the server or is a foreign PVC.
func keepOwn[T interface {
	comparable
	metav1.Object
}](i *Instance, o T, err error) (T, error) {
	var none T
	if err != nil {
		return none, objects.IgnoreNotFound(err)
	}
	if l := o.GetLabels(); l[objects.LabelCluster] != i.reader.ClusterID || l[objects.LabelUID] != string(i.UID) || objects.IsForeignClaim(o) {
		i.Unlabelled = append(i.Unlabelled, o)
		return none, nil
	}
	i.Note(o)
	return o, nil
}

// ID returns the ID of the server.
func (i *Instance) ID() string { return objects.ServerID(i.Key.Namespace, i.Key.Name) }

// End returns how the pod has ended, nil as long as that is not proven.
func (i *Instance) End() *driver.Exit {
	if i.Pod == nil {
		return nil
	}
	exit := i.findEnd()
	if exit != nil {
		exit.Evicted = ends.IsEvicted(i.Pod, exit)
	}
	return exit
}

// findEnd returns how the pod has ended by the first proof that there is.
func (i *Instance) findEnd() *driver.Exit {
	if exit := ends.ProvenEnd(i.Pod); exit != nil && !i.isJustRejected() {
		return exit
	}
	if exit := i.AssertedEnd(); exit != nil {
		return exit
	}
	return ends.LostEnd(i.Pod, i.node.object, ends.IsAsserted(i.Pod, i.Asserted))
}

// AssertedEnd returns the end that an operator has asserted for the pod, if its kubelet does not report, or
// nil.
func (i *Instance) AssertedEnd() *driver.Exit {
	if i.Pod == nil || i.Pod.Spec.NodeName == "" || i.node.isUnknown {
		return nil
	}
	return ends.AssertedEnd(i.node.object, ends.IsAsserted(i.Pod, i.Asserted), i.reader.Clock.Now())
}

// RefusesAssertion returns whether the pod should record that the operator's assertion is refused, because
// its node was ready then, and whether the pod records something else. Without the record, an assertion
// about the wrong pod would count once its node does not answer for a moment.
func (i *Instance) RefusesAssertion() (refuses, differs bool) {
	if i.reader.PodAssertedOff == nil || i.Pod == nil || i.Pod.Spec.NodeName == "" || ends.ProvenEnd(i.Pod) != nil {
		return false, false
	}
	was := ends.IsAssertionRefused(i.Pod)
	refuses = i.Pod.UID == i.Asserted && (was || i.node.isReady() && !ends.HasLostMachine(i.Pod))
	return refuses, refuses != was
}

// IsRetained reports whether the server was released.
func (i *Instance) IsRetained() bool {
	if i.Pod != nil && i.Claims.Root() == nil {
		return i.Pod.Labels[objects.LabelRetained] != ""
	}
	all := i.Claims.All()
	return len(all) > 0 && all[0].Labels[objects.LabelRetained] != ""
}

// IsLeaving reports whether the kubelet has yet to remove a pod whose end is recorded.
func (i *Instance) IsLeaving() bool {
	return i.Pod.DeletionTimestamp != nil && !slices.Contains(i.Pod.Finalizers, objects.FinalizerStopped) && (i.Claims.Root() == nil || i.Claims.HasEnded(i.Pod.UID))
}

// rejectionDelay is how long a rejected pod has to remain so before that proves its end. A kubelet that
// was restarted rejects a pod whose container runs before it ends that container, and nothing on the pod
// tells whether it had run.
const rejectionDelay = time.Minute

// isJustRejected reports whether the rejection of the pod was first seen, by the clock of this process,
// less than rejectionDelay ago.
func (i *Instance) isJustRejected() bool {
	if !ends.IsRejected(i.Pod) || i.Claims.HasEnded(i.Pod.UID) {
		return false
	}
	now := i.reader.Clock.Now()
	first, _ := i.reader.rejectedSince.LoadOrStore(i.Pod.UID, now)
	return now.Sub(first) < rejectionDelay
}

// ForgetRejections forgets when the rejections of pods were first seen, except of those that are present.
func (r *Reader) ForgetRejections(isPresent func(pod types.UID) bool) {
	r.rejectedSince.DeleteFunc(func(pod types.UID, _ time.Time) bool { return !isPresent(pod) })
}

// EndRecord returns the value of AnnotationEnd for a pod whose end is proven.
func (i *Instance) EndRecord() (string, error) {
	record, err := json.Marshal(endRecord{Pod: i.Pod.UID, Exit: i.End(), Disruption: i.Disruption()})
	return string(record), err
}

// Lost returns why nothing tells whether the machine runs: the pod is gone without a record of its end, or
// its kubelet has lost the machine's container. It returns "" if neither is so.
func (i *Instance) Lost() string {
	switch {
	case i.Pod == nil && i.Claims.lacksEnd(i.Asserted):
		return PodLostText(i.Key)
	case i.Pod != nil && ends.HasLostMachine(i.Pod) && i.End() == nil:
		return fmt.Sprintf("the kubelet of node %s has not seen the end of the machine's container in pod %s, and has yet to remove its control group (%s)%s",
			i.Pod.Spec.NodeName, i.Key, ends.LostState(i.Pod), refusalText(i.Pod))
	}
	return ""
}

// PodLostText returns the message that a pod is gone without a proof of its end.
func PodLostText(pod types.NamespacedName) string {
	return fmt.Sprintf("the pod %s is gone, and nothing proves that its containers have ended", pod)
}

// UnrecordedBoot returns the boot of the node in which the machine runs. It returns "" if the pod already
// records a boot, or the boot is not known yet.
func (i *Instance) UnrecordedBoot() string {
	if i.Pod == nil || i.node.object == nil || !ends.LacksBoot(i.Pod) {
		return ""
	}
	return ends.BootSince(i.node.object, objects.MachineStatus(i.Pod).State.Running.StartedAt.Time)
}
