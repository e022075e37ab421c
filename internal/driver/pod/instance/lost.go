// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// reasonInferred is the reason of an end that a kubelet has not seen, because the runtime does not know the
// container any more: it was removed after its end, as in an eviction, or the runtime has lost its state and
// the container still runs.
const reasonInferred = "ContainerStatusUnknown"

// textGroupRemoved is the output of an end that was not seen.
const textGroupRemoved = "the kubelet has not seen the end of the machine's container, and has then removed the control group of its pod"

// isInferred reports whether a kubelet has inferred the end of a container.
func isInferred(t *corev1.ContainerStateTerminated) bool { return t.Reason == reasonInferred }

// isGroupRemoved reports whether a kubelet that has lost a container of an ended pod has since removed the
// control group of the pod, so that none of its processes runs. Until then it reports that the container waits.
// Its last report is that the container has terminated, without an ID (SyncTerminatedPod in
// pkg/kubelet/kubelet.go of Kubernetes; ADR 0038 has the experiments). With an ID, the state is the
// runtime's, which proves nothing.
func isGroupRemoved(s *corev1.ContainerStatus) bool {
	return s.State.Terminated != nil && isInferred(s.State.Terminated) && s.ContainerID == "" && s.State.Terminated.ContainerID == ""
}

// hasLostMachine reports whether the kubelet has not seen the end of the machine's container. The end of the
// pod may still be proven.
func hasLostMachine(p *corev1.Pod) bool {
	s := objects.MachineStatus(p)
	switch {
	case s == nil:
		return false
	case s.State.Terminated != nil:
		return isInferred(s.State.Terminated)
	}
	return s.State.Running == nil && isTerminal(p.Status.Phase)
}

// lostEnd returns the end of a pod whose machine's container was lost, nil if nothing proves it. Proofs
// are another boot of the node, and an operator's assertion, which counts although the node is ready,
// since no report will come. When the machine ended is not known.
func lostEnd(p *corev1.Pod, node *corev1.Node, isAsserted bool) *driver.Exit {
	switch {
	case !hasLostMachine(p):
		return nil
	case isAsserted:
		return &driver.Exit{Code: codeKilled, Reason: exitAsserted, Output: textAsserted}
	case node != nil && hasRebooted(node, p.Annotations[objects.AnnotationBoot]):
		return &driver.Exit{Code: codeKilled, Reason: reasonInferred, Output: "node " + node.Name + " has been booted again"}
	}
	return nil
}

// Lost returns why nothing tells whether the machine runs: the pod is gone without a record of its end, or
// its kubelet has lost the machine's container. It returns "" if neither is so.
func (i *Instance) Lost() string {
	switch {
	case i.Pod == nil && i.Claims.lacksEnd(i.Asserted):
		return PodLostText(i.Key)
	case i.Pod != nil && hasLostMachine(i.Pod) && i.End() == nil:
		return fmt.Sprintf("the kubelet of node %s has not seen the end of the machine's container in pod %s, and has yet to remove its control group (%s)%s",
			i.Pod.Spec.NodeName, i.Key, lostState(i.Pod), refusalText(i.Pod))
	}
	return ""
}

// lostState returns the state that the kubelet reports of a container that it has lost.
func lostState(p *corev1.Pod) string {
	if objects.MachineStatus(p).State.Terminated != nil {
		return reasonInferred
	}
	return "Waiting"
}

// PodLostText returns the message that a pod is gone without a proof of its end.
func PodLostText(pod types.NamespacedName) string {
	return fmt.Sprintf("the pod %s is gone, and nothing proves that its containers have ended", pod)
}

// UnrecordedBoot returns the boot of the node in which the machine runs. It returns "" if the pod already
// records a boot, or the boot is not known yet.
func (i *Instance) UnrecordedBoot() string {
	if i.Pod == nil || i.node.object == nil || !lacksBoot(i.Pod) {
		return ""
	}
	return bootSince(i.node.object, objects.MachineStatus(i.Pod).State.Running.StartedAt.Time)
}

// lacksBoot reports whether the machine of a pod runs and the pod does not record in which boot of its
// node.
func lacksBoot(p *corev1.Pod) bool {
	return IsRunning(p) && p.Annotations[objects.AnnotationBoot] == ""
}

// bootSince returns the system and the boot of a node if its kubelet has posted them after a container was
// started, and else "": an older status may be from the boot before. Both times are the node's.
func bootSince(node *corev1.Node, started time.Time) string {
	isNew := slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && c.LastHeartbeatTime.After(started)
	})
	info := node.Status.NodeInfo
	if !isNew || info.SystemUUID == "" || info.BootID == "" {
		return ""
	}
	return info.SystemUUID + "/" + info.BootID
}

// hasRebooted reports whether a node is the recorded system in another boot.
func hasRebooted(node *corev1.Node, recorded string) bool {
	system, boot, _ := strings.Cut(recorded, "/")
	info := node.Status.NodeInfo
	return system != "" && system == info.SystemUUID && boot != "" && info.BootID != "" && boot != info.BootID
}
