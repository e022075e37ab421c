// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// startingText returns what a pod waits for, in the words of the scheduler and the kubelet.
func startingText(p *corev1.Pod, node nodeState, copied *control.Copied) string {
	if lost := node.lostError(p); lost != nil {
		return lost.Error()
	}
	switch {
	case objects.IsRunning(p):
		return diskText(p, copied)
	case ends.IsRejected(p):
		return ends.TruncateText(fmt.Sprintf("the kubelet of node %s rejects the pod, and may have yet to end its container: the next one is made once that has lasted for %v: %s: %s",
			p.Spec.NodeName, rejectionDelay, p.Status.Reason, p.Status.Message))
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && !isGatedByDrover(p, c) {
			return "the pod is not scheduled: " + cmp.Or(c.Message, c.Reason)
		}
	}
	if s := objects.MachineStatus(p); s != nil && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
		return ends.TruncateText(strings.TrimSuffix(fmt.Sprintf("the container waits: %s: %s", s.State.Waiting.Reason, s.State.Waiting.Message), ": "))
	}
	if p.Spec.NodeName == "" {
		return "the pod waits to be scheduled"
	}
	return "the pod starts on node " + p.Spec.NodeName
}

// isGatedByDrover reports whether a pod is not scheduled only because of Drover's gate, which Drover
// removes once it has recorded the pod. Users can do nothing about that one.
func isGatedByDrover(p *corev1.Pod, scheduled corev1.PodCondition) bool {
	others := len(p.Spec.SchedulingGates)
	if objects.IsGated(p) {
		others--
	}
	return scheduled.Reason == corev1.PodReasonSchedulingGated && others == 0
}

// stoppingText returns that a pod ends.
func stoppingText(p *corev1.Pod, node nodeState) string {
	return "the pod ends on node " + p.Spec.NodeName + lostNodeText(node) + refusalText(p)
}

// otherContainersText says that the machine of a pod has ended and that the kubelet ends the pod's other containers.
func otherContainersText(p *corev1.Pod, node nodeState) string {
	text := "the machine has ended, and the kubelet of node " + p.Spec.NodeName + " ends the other containers of its pod"
	if names := ends.OtherContainers(p); len(names) > 0 {
		text += ": " + strings.Join(names, ", ")
	}
	return ends.TruncateText(text) + lostNodeText(node)
}

// lostNodeText tells an operator how to end a pod of a lost node. It is empty if the node is known to be ready.
func lostNodeText(node nodeState) string {
	if node.isReady() {
		return ""
	}
	return "; if that node does not come back, power it off and then set its taint " + corev1.TaintNodeOutOfService
}

// refusalText tells an operator how to repeat an assertion that was refused. It is empty if none was refused.
func refusalText(p *corev1.Pod) string {
	if !ends.IsAssertionRefused(p) {
		return ""
	}
	return "; that its machine is off was asserted while its node was ready, which does not count: remove that annotation, and set it again once this message has changed"
}

// describeTags returns which tags of images were not resolved and why, "" if all were.
func describeTags(images []driver.ResolvedImage) string {
	var all []string
	for _, i := range images {
		switch {
		case i.Digest != "":
		case i.Unproven:
			all = append(all, fmt.Sprintf("each node resolves the tag of image %s, since %s", i.Source, i.Message))
		default:
			all = append(all, fmt.Sprintf("each node resolves the tag of image %s, since the controller could not: %s", i.Source, i.Message))
		}
	}
	return strings.Join(all, "; ")
}

// diskText returns how much of an image a machine that makes its disks has copied.
func diskText(p *corev1.Pod, copied *control.Copied) string {
	text := "the machine on node " + p.Spec.NodeName + " makes its disks"
	switch {
	case copied == nil:
	case copied.TotalBytes == 0:
		text += fmt.Sprintf(": %d MB of the image", copied.Bytes/megabyte)
	default:
		text += fmt.Sprintf(": %d of %d MB of the image", copied.Bytes/megabyte, copied.TotalBytes/megabyte)
	}
	return text
}

// megabyte is the unit of sizes in messages.
const megabyte = 1_000_000

// waitError returns an error that describes what a guest waits for, nil if it waits for nothing.
func waitError(waits control.Wait) error {
	switch waits {
	case control.WaitRoom:
		return errors.New("the guest waits: the volume of one of its disks is full")
	case control.WaitDisk:
		return errors.New("the guest waits: one of its disks fails")
	default: // WaitNone
		return nil
	}
}

// maxHeld limits how many objects heldText names.
const maxHeld = 5

// heldText returns which objects of a server remain after their deletion, and why: others have put
// finalizers on them, or the kubelet has yet to remove a pod that has ended. The pod may be nil. It is ""
// if nothing remains.
func heldText(ended *corev1.Pod, claims Claims) string {
	var all []string
	if ended != nil {
		all = append(all, heldPodText(ended))
	}
	for _, claim := range append(claims.Volumes(), claims.Root()) {
		if claim != nil && claim.DeletionTimestamp != nil {
			all = append(all, fmt.Sprintf("%s is being deleted%s", objects.Describe(objects.KindClaim, claim), finalizersText(claim)))
		}
	}
	if more := len(all) - maxHeld; more > 0 {
		all = append(all[:maxHeld], fmt.Sprintf("and %d more", more))
	}
	return ends.TruncateText(strings.Join(all, "; "))
}

// heldPodText returns why a pod that has ended remains.
func heldPodText(p *corev1.Pod) string {
	text := "the pod " + p.Namespace + "/" + p.Name + " has ended"
	if held := finalizersText(p); held != "" || p.Spec.NodeName == "" {
		return text + held
	}
	return text + ", and its kubelet has yet to remove it, on node " + p.Spec.NodeName
}

// IsHeld reports whether an object has finalizers of others than Drover, so that it remains after its
// deletion.
func IsHeld(o metav1.Object) bool { return len(foreignFinalizers(o)) > 0 }

// finalizersText names the finalizers of others than Drover on an object, "" if there are none.
func finalizersText(o metav1.Object) string {
	if !IsHeld(o) {
		return ""
	}
	return ", and its finalizers hold it: " + strings.Join(foreignFinalizers(o), ", ")
}

// foreignFinalizers returns the finalizers of an object that are not Drover's.
func foreignFinalizers(o metav1.Object) []string {
	return slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == objects.FinalizerStopped })
}

// Disruption describes how the run of the pod was disrupted, "" if nothing shows that. It is the recorded
// disruption if the end of the pod is recorded.
func (i *Instance) Disruption() string {
	last := i.Claims.lastEnd()
	if i.Pod == nil || last.Pod != "" && last.Pod == i.Pod.UID {
		return last.Disruption
	}
	return ends.DisruptionOf(i.Pod, i.IsDeletedHere)
}

// isUnschedulable reports whether the scheduler has found no node for a pod.
func isUnschedulable(p *corev1.Pod) bool {
	c := objects.FindCondition(p, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}
