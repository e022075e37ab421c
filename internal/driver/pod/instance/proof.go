// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// exitAsserted is the reason of an end that an operator asserts.
const exitAsserted = "Asserted"

// endRecord is the value of AnnotationEnd.
type endRecord struct {
	Pod  types.UID    `json:"pod"`
	Exit *driver.Exit `json:"exit,omitempty"`
	// Disruption is that of driver.Server.
	Disruption string `json:"disruption,omitempty"`
}

// ProvenEnd returns how a pod has ended, or nil as long as nothing proves that none of its
// containers runs.
//
// What proves it: a pod that is being deleted and never had a node, since the scheduler binds no
// such pod; the kubelet's report that every container has terminated, of which none starts again
// under restartPolicy Never; the kubelet's refusal to run the pod at all. The phase alone proves
// nothing, since controllers write it for nodes that do not answer, nor does a node that is not
// ready or gone.
func ProvenEnd(pod *corev1.Pod) *driver.Exit {
	switch {
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return &driver.Exit{Reason: driver.ExitNeverRan, At: pod.DeletionTimestamp.Time}
	case pod.Spec.NodeName == "":
		return nil
	case IsRejected(pod):
		return &driver.Exit{Code: 1, Reason: driver.ExitRejected, Output: truncateText(pod.Status.Reason + ": " + pod.Status.Message), At: rejectedAt(pod)}
	}
	return reportedEnd(pod)
}

// IsRejected reports whether the kubelet refused to run a pod: it failed with a reason, and no
// container of it was ever reported. Other controllers fail pods only together with a condition
// DisruptionTarget, after a kubelet was lost.
func IsRejected(pod *corev1.Pod) bool {
	s := pod.Status
	if s.Phase != corev1.PodFailed || s.Reason == "" || len(s.ContainerStatuses) > 0 || len(s.InitContainerStatuses) > 0 {
		return false
	}
	for _, c := range s.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason != corev1.PodReasonTerminationByKubelet {
			return false
		}
	}
	return true
}

// ImageUse reports whether the pod, which has ended, may have used its images, and else whether its
// node has failed to: no container was created there. Both are false for a pod that no node accepted.
func (i *Instance) ImageUse() (isUsed, hasFailed bool) {
	exit, status := ProvenEnd(i.Pod), objects.MachineStatus(i.Pod)
	switch {
	case i.Pod.Spec.NodeName == "" || IsRejected(i.Pod):
		return false, false
	case exit == nil: // an operator has asserted the end, and what the kubelet reported last may be old
		return true, false
	}
	isUsed = status != nil && hasContainer(status)
	return isUsed, !isUsed
}

// HasContainer reports whether the machine's container was created, as far as its kubelet has reported.
func (i *Instance) HasContainer() bool {
	status := objects.MachineStatus(i.Pod)
	return status != nil && hasContainer(status)
}

// hasContainer reports whether a container was created. A kubelet that finds one no more that has run
// counts it as restarted.
func hasContainer(s *corev1.ContainerStatus) bool { return s.ContainerID != "" || s.RestartCount > 0 }

func rejectedAt(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// reportedEnd returns how the machine's container ended, once all containers have.
func reportedEnd(pod *corev1.Pod) *driver.Exit {
	statuses := append(append([]corev1.ContainerStatus{}, pod.Status.ContainerStatuses...), pod.Status.InitContainerStatuses...)
	statuses = append(statuses, pod.Status.EphemeralContainerStatuses...)
	if len(statuses) < len(pod.Spec.Containers)+len(pod.Spec.InitContainers)+len(pod.Spec.EphemeralContainers) {
		return nil
	}
	var exit *driver.Exit
	for _, s := range statuses {
		switch {
		case s.State.Terminated == nil:
			return nil
		case s.Name != objects.ContainerName:
		case !hasContainer(&s): // its pod was deleted while an image was pulled, say
			exit = &driver.Exit{Code: int(s.State.Terminated.ExitCode), Reason: driver.ExitNeverRan, At: s.State.Terminated.FinishedAt.Time}
		default:
			exit = exitOf(s.State.Terminated)
		}
	}
	return exit
}

// exitOf translates the end of the machine's container. drover-machine leaves its reason in the
// termination message; without one, the kubelet's holds. A machine that a signal ended, as in a drain, is
// one whose host was shut down: its guest had not decided to end.
func exitOf(t *corev1.ContainerStateTerminated) *driver.Exit {
	exit := &driver.Exit{Code: int(t.ExitCode), Reason: t.Reason, At: t.FinishedAt.Time}
	var message struct {
		Reason, Message string
		StopRequested   bool
	}
	if t.Reason != reasonOOMKilled && json.Unmarshal([]byte(t.Message), &message) == nil && message.Reason != "" {
		exit.Reason, exit.Output, exit.StopRequested = truncateText(message.Reason), truncateText(message.Message), message.StopRequested
	}
	return exit
}

// hasMadeDisk reports whether drover-machine says that there is a disk: its guest has run, or it had come as
// far as to make it.
func hasMadeDisk(t *corev1.ContainerStateTerminated, disk string) bool {
	var message struct {
		Reason string
		Disks  struct {
			Root    bool
			Volumes []string
		}
	}
	switch {
	case json.Unmarshal([]byte(t.Message), &message) != nil, message.Reason == "":
		return false
	case message.Reason != driver.ExitNotStarted && message.Reason != exitInvalid:
		return true
	case disk == objects.RootDisk:
		return message.Disks.Root
	}
	return slices.Contains(message.Disks.Volumes, disk)
}

// exitInvalid is drover-machine's reason for a wrong description.
const exitInvalid = "InvalidDescription"

// reasonOOMKilled is the kubelet's reason for a container that had too little memory.
const reasonOOMKilled = "OOMKilled"

// maxOutput is how much of a message is kept.
const maxOutput = 1 << 10

// truncateText returns what is kept of a text that others have written.
func truncateText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxOutput)], "")
}

// assertedEnd returns the end of a pod that an operator asserts: by the taint out-of-service on its
// node, or by the annotation about this pod. Neither counts while the node is ready: then its kubelet
// reports, and the machine may be shutting down. A node that is gone is nil.
func assertedEnd(node *corev1.Node, asserted bool, now time.Time) *driver.Exit {
	switch {
	case node != nil && isReady(node):
		return nil
	case asserted:
		return &driver.Exit{Code: 137, Reason: exitAsserted, Output: "an operator has asserted that the machine is off", At: now}
	case node != nil && isOutOfService(node):
		return &driver.Exit{Code: 137, Reason: exitAsserted, Output: fmt.Sprintf("node %s has the taint %s", node.Name, corev1.TaintNodeOutOfService), At: now}
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// hasEnded reports whether the PVC of the root disk has the end of a pod, or that it never ran.
func hasEnded(root *corev1.PersistentVolumeClaim, pod types.UID) bool {
	return pod != "" && root != nil && (endOf(root).Pod == pod || root.Annotations[objects.AnnotationNeverRan] == string(pod))
}

// endOf returns the record on the PVC; one that is damaged records nothing.
func endOf(root *corev1.PersistentVolumeClaim) (end endRecord) {
	if root == nil || json.Unmarshal([]byte(root.Annotations[objects.AnnotationEnd]), &end) != nil {
		return endRecord{}
	}
	if end.Disruption = truncateText(end.Disruption); end.Exit != nil { // users can change annotations
		end.Exit.Reason, end.Exit.Output = truncateText(end.Exit.Reason), truncateText(end.Exit.Output)
	}
	return end
}

// EndRecord returns the value of AnnotationEnd for the pod, whose end is proven.
func (i *Instance) EndRecord() (string, error) {
	record, err := json.Marshal(endRecord{Pod: i.Pod.UID, Exit: i.End(), Disruption: i.Disruption()})
	return string(record), err
}

// IsEndRecorded reports whether the PVC of the root disk has the end of the pod, or that it never ran.
func (i *Instance) IsEndRecorded() bool { return hasEnded(i.Root, i.Pod.UID) }
