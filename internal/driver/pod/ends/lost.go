// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// ReasonInferred is the reason of an end that a kubelet has not seen, because the runtime does not know the
// container any more: it was removed after its end, as in an eviction, or the runtime has lost its state and
// the container still runs.
const ReasonInferred = "ContainerStatusUnknown"

// textGroupRemoved is the output of an end that was not seen.
const textGroupRemoved = "the kubelet has not seen the end of the machine's container, and has then removed the control group of its pod"

// isInferred reports whether a kubelet has inferred the end of a container.
func isInferred(t *corev1.ContainerStateTerminated) bool { return t.Reason == ReasonInferred }

// isGroupRemoved reports whether a kubelet that has lost a container of an ended pod has since removed the
// control group of the pod, so that none of its processes runs. Until then it reports that the container waits.
// Its last report is that the container has terminated, without an ID (SyncTerminatedPod in
// pkg/kubelet/kubelet.go of Kubernetes; ADR 0038 has the experiments). With an ID, the state is the
// runtime's, which proves nothing.
func isGroupRemoved(s *corev1.ContainerStatus) bool {
	return s.State.Terminated != nil && isInferred(s.State.Terminated) && s.ContainerID == "" && s.State.Terminated.ContainerID == ""
}

// HasLostMachine reports whether the kubelet has not seen the end of the machine's container. The end of the
// pod may still be proven.
func HasLostMachine(p *corev1.Pod) bool {
	s := objects.MachineStatus(p)
	switch {
	case s == nil:
		return false
	case s.State.Terminated != nil:
		return isInferred(s.State.Terminated)
	}
	return s.State.Running == nil && IsTerminal(p.Status.Phase)
}

// LostEnd returns the end of a pod whose machine's container was lost, nil if nothing proves it. Proofs
// are another boot of the node, and an operator's assertion, which counts although the node is ready,
// since no report will come. When the machine ended is not known.
func LostEnd(p *corev1.Pod, node *corev1.Node, isAsserted bool) *driver.Exit {
	switch {
	case !HasLostMachine(p):
		return nil
	case isAsserted:
		return &driver.Exit{Code: codeKilled, Reason: ExitAsserted, Output: textAsserted}
	case node != nil && hasRebooted(node, p.Annotations[objects.AnnotationBoot]):
		return &driver.Exit{Code: codeKilled, Reason: ReasonInferred, Output: "node " + node.Name + " has been booted again"}
	}
	return nil
}

// LostState returns the state that the kubelet reports of a container that it has lost.
func LostState(p *corev1.Pod) string {
	if objects.MachineStatus(p).State.Terminated != nil {
		return ReasonInferred
	}
	return "Waiting"
}

// LacksBoot reports whether the machine of a pod runs and the pod does not record in which boot of its
// node.
func LacksBoot(p *corev1.Pod) bool {
	return objects.IsRunning(p) && p.Annotations[objects.AnnotationBoot] == ""
}

// BootSince returns the system and the boot of a node if its kubelet has posted them after a container was
// started, and else "": an older status may be from the boot before. Both times are the node's.
func BootSince(node *corev1.Node, started time.Time) string {
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
