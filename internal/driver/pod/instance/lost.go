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

// reasonInferred is the reason of a container's end that a kubelet has not seen: the runtime does not know the
// container any more. It may run all the same, for example after the runtime has lost its state.
const reasonInferred = "ContainerStatusUnknown"

func isInferred(t *corev1.ContainerStateTerminated) bool { return t.Reason == reasonInferred }

// hasLostMachine reports whether the kubelet will report no more of the machine's container, whose end it has
// not seen. Whether the end of the pod is proven is another question.
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

// lostEnd returns the end of a pod whose machine's container was lost, nil while nothing proves it: another boot
// of the node, or an operator's assertion, which counts although the node is ready, since no report will come. When
// the machine has ended is not known.
func (i *Instance) lostEnd() *driver.Exit {
	switch {
	case !hasLostMachine(i.Pod):
		return nil
	case i.Pod.UID == i.Asserted && !i.isAssertionRefused():
		return &driver.Exit{Code: codeKilled, Reason: exitAsserted, Output: textAsserted}
	case i.node != nil && hasRebooted(i.node, i.Pod.Annotations[objects.AnnotationBoot]):
		return &driver.Exit{Code: codeKilled, Reason: reasonInferred, Output: "node " + i.node.Name + " has been booted again"}
	}
	return nil
}

// Lost returns why nothing tells whether the machine runs, "" if something does: the pod is gone without a record
// of its end, or its kubelet has lost the machine's container.
func (i *Instance) Lost() string {
	switch {
	case i.isPodLost():
		return i.PodLost()
	case i.Pod != nil && hasLostMachine(i.Pod) && i.End() == nil:
		return fmt.Sprintf("the kubelet of node %s has not seen the end of the machine's container in pod %s, and reports no more of it (%s)%s",
			i.Pod.Spec.NodeName, i.Key, lostState(i.Pod), i.refusalText())
	}
	return ""
}

// lostState returns the kubelet's word for the state of a container that it has lost.
func lostState(p *corev1.Pod) string {
	if objects.MachineStatus(p).State.Terminated != nil {
		return reasonInferred
	}
	return "Waiting"
}

// PodLost says that the pod is gone without a proof of its end.
func (i *Instance) PodLost() string {
	return fmt.Sprintf("the pod %s is gone, and nothing proves that its containers have ended", i.Key)
}

// isPodLost reports whether the pod is gone that the PVC has recorded, without a record of its end.
func (i *Instance) isPodLost() bool {
	if i.Pod != nil || i.Root == nil {
		return false
	}
	run := types.UID(i.Root.Annotations[objects.AnnotationRun])
	return run != "" && !hasEnded(i.Root, run) && run != i.Asserted
}

// UnrecordedBoot returns the boot of its node in which the machine runs, "" if the pod has it recorded, or it is
// not known yet.
func (i *Instance) UnrecordedBoot() string {
	if i.Pod == nil || i.node == nil || !i.lacksBoot() {
		return ""
	}
	return bootSince(i.node, objects.MachineStatus(i.Pod).State.Running.StartedAt.Time)
}

// lacksBoot reports whether the machine runs, and the pod has not recorded in which boot of its node.
func (i *Instance) lacksBoot() bool {
	return IsRunning(i.Pod) && i.Pod.Annotations[objects.AnnotationBoot] == ""
}

// bootSince returns the system and the boot of a node as its kubelet has posted them after a container was
// started, "" before that: an older status may be from the boot before. Both times are the node's.
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

// hasRebooted reports whether a node is the same system as recorded, in another boot.
func hasRebooted(node *corev1.Node, recorded string) bool {
	system, boot, _ := strings.Cut(recorded, "/")
	info := node.Status.NodeInfo
	return system != "" && system == info.SystemUUID && boot != "" && info.BootID != "" && boot != info.BootID
}
