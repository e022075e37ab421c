// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ends proves that a pod, or the machine in it, has ended, by the reports of its kubelet, its node and an operator.
//
// Start with ProvenEnd. lost.go has the pods whose machine a kubelet has lost, and disruption.go why a pod has ended.
package ends

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// The reason and the output of an end that an operator asserts.
const (
	ExitAsserted = "Asserted"
	textAsserted = "an operator has asserted that the machine is off"
)

// ProvenEnd returns how a pod has ended, or nil as long as nothing proves that none of its containers
// runs.
//
// One of these is a proof: The pod is being deleted and never had a node, since the scheduler binds no
// such pod. Or the kubelet has reported that every container has terminated, and restartPolicy Never keeps
// all from starting again. Or the kubelet has lost a container and then removed the pod's control group.
// Or the kubelet has refused to run the pod, once that has lasted (End of an instance).
//
// The phase alone does not prove the end of a machine that was started, since controllers write it for
// nodes that do not answer. Nor does a node that is not ready or gone.
func ProvenEnd(pod *corev1.Pod) *driver.Exit {
	switch {
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return &driver.Exit{Reason: driver.ExitNeverRan, At: pod.DeletionTimestamp.Time}
	case pod.Spec.NodeName == "":
		return nil
	case IsRejected(pod):
		return &driver.Exit{Code: 1, Reason: driver.ExitRejected, Output: TruncateText(pod.Status.Reason + ": " + pod.Status.Message), At: rejectedAt(pod)}
	}
	return reportedEnd(pod)
}

// IsRejected reports whether the kubelet refused to run a pod: the pod failed with a reason, and no
// container of it was ever reported. When other controllers fail a pod after its kubelet was lost, they
// also set condition DisruptionTarget.
func IsRejected(pod *corev1.Pod) bool {
	s := pod.Status
	if s.Phase != corev1.PodFailed || s.Reason == "" || len(s.ContainerStatuses) > 0 || len(s.InitContainerStatuses) > 0 {
		return false
	}
	reason := disruptionReason(pod)
	return reason == "" || reason == corev1.PodReasonTerminationByKubelet
}

// disruptionReason returns the reason of a pod's condition DisruptionTarget, "" if it is not set.
func disruptionReason(pod *corev1.Pod) string {
	if c := objects.FindCondition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return c.Reason
	}
	return ""
}

// ImageUse reports whether a pod that has ended may have used its images, and else whether its node failed
// to: it created no container. Both are false for a pod that no node accepted.
func ImageUse(p *corev1.Pod) (isUsed, hasFailed bool) {
	switch {
	case p.Spec.NodeName == "" || IsRejected(p):
		return false, false
	case ProvenEnd(p) == nil: // an operator has asserted the end, and the last report of the kubelet may be old
		return true, false
	}
	isUsed = HasContainer(p)
	return isUsed, !isUsed
}

// HasContainer reports whether the kubelet has reported that the machine's container was created.
func HasContainer(p *corev1.Pod) bool {
	status := objects.MachineStatus(p)
	return status != nil && hasContainer(status)
}

// hasContainer reports whether a container was created. If the runtime has lost a container that ran, its
// kubelet reports no ID, but a restart or an earlier end.
func hasContainer(s *corev1.ContainerStatus) bool {
	return s.ContainerID != "" || s.RestartCount > 0 || s.LastTerminationState.Terminated != nil
}

// rejectedAt returns when a kubelet rejected a pod, or when the pod was created if that is not known.
func rejectedAt(pod *corev1.Pod) time.Time {
	if pod.Status.StartTime != nil {
		return pod.Status.StartTime.Time
	}
	return pod.CreationTimestamp.Time
}

// reportedEnd returns how the machine's container ended, once all containers have.
func reportedEnd(pod *corev1.Pod) *driver.Exit {
	over, s := isOver(pod), objects.MachineStatus(pod)
	if s == nil || mayRunOthers(pod, over) {
		return nil
	}
	isReported := s.State.Terminated != nil && !isInferred(s.State.Terminated)
	switch hasRun := hasContainer(s) || pod.Annotations[objects.AnnotationBoot] != ""; {
	case isReported && hasRun:
		return exitOf(s.State.Terminated)
	case over && hasRun && isGroupRemoved(s):
		return &driver.Exit{Code: codeKilled, Reason: ReasonInferred, Output: textGroupRemoved}
	case isReported, over && !hasRun && s.State.Running == nil: // deleted before all images were there, say
		return &driver.Exit{Code: codeKilled, Reason: driver.ExitNeverRan, At: finishedAt(s)}
	}
	return nil
}

// codeKilled is the exit code that a kubelet reports of a container whose own is not known.
const codeKilled = 137

// finishedAt returns when a container has ended, the zero time if that is not known.
func finishedAt(s *corev1.ContainerStatus) (finished time.Time) {
	if s.State.Terminated != nil {
		finished = s.State.Terminated.FinishedAt.Time
	}
	return finished
}

// mayRunOthers reports whether a container other than the machine's may run. The kubelet never reports the
// end of a container that never started, such as an init container of a pod that was deleted early: then
// the end of the pod counts.
func mayRunOthers(pod *corev1.Pod, over bool) bool {
	s := pod.Status
	states := map[string]corev1.ContainerState{}
	for _, c := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses) {
		states[c.Name] = c.State
	}
	mayRun := func(name string) bool {
		state := states[name]
		return name != objects.ContainerName && (state.Running != nil || state.Terminated == nil && !over)
	}
	of := pod.Spec
	return slices.ContainsFunc(of.InitContainers, func(c corev1.Container) bool { return mayRun(c.Name) }) ||
		slices.ContainsFunc(of.Containers, func(c corev1.Container) bool { return mayRun(c.Name) }) ||
		slices.ContainsFunc(of.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return mayRun(c.Name) })
}

// isOver reports whether the kubelet has ended a pod. The kubelet sets a terminal phase once the runtime
// runs no container of the pod. The controller that also sets one, for lost nodes, adds a condition.
func isOver(pod *corev1.Pod) bool {
	switch disruptionReason(pod) {
	case "", corev1.PodReasonTerminationByKubelet:
	case "EvictionByEvictionAPI", corev1.PodReasonPreemptionByScheduler, "DeletionByTaintManager": // they ask for a deletion
	default:
		return false
	}
	return IsTerminal(pod.Status.Phase) && slices.ContainsFunc(pod.ManagedFields, IsPhaseOfKubelet)
}

// IsTerminal reports whether a pod in a phase never leaves it.
func IsTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// IsPhaseOfKubelet reports whether an entry of managedFields says that a kubelet has written the phase of
// a pod. A kubelet that is part of another program, as in k3s, has another name, but writes the states of
// containers too.
func IsPhaseOfKubelet(e metav1.ManagedFieldsEntry) bool {
	var owned struct {
		Status struct {
			Phase      json.RawMessage `json:"f:phase"`
			Containers json.RawMessage `json:"f:containerStatuses"`
		} `json:"f:status"`
	}
	if e.Subresource != "status" || e.FieldsV1 == nil || json.Unmarshal(e.FieldsV1.GetRawBytes(), &owned) != nil {
		return false
	}
	return owned.Status.Phase != nil && (e.Manager == "kubelet" || owned.Status.Containers != nil)
}

// endMessage is the termination message that drover-machine writes.
type endMessage struct {
	Reason, Message string
	StopRequested   bool
	Disks           struct {
		Root    bool
		Volumes []string
	}
	TooLarge struct {
		Volume string
		Bytes  int64
	}
}

// readMessage returns the termination message of the machine's container. ok is false if drover-machine has
// written none.
func readMessage(t *corev1.ContainerStateTerminated) (m endMessage, ok bool) {
	err := json.Unmarshal([]byte(t.Message), &m)
	return m, err == nil && m.Reason != ""
}

// exitOf returns the end of the machine's container. The reason that drover-machine leaves in the
// termination message replaces the kubelet's. A machine that a signal ended, as in a drain, counts as one
// whose host was shut down, since its guest had not decided to end.
func exitOf(t *corev1.ContainerStateTerminated) *driver.Exit {
	exit := &driver.Exit{Code: int(t.ExitCode), Reason: t.Reason, At: t.FinishedAt.Time}
	if message, ok := readMessage(t); ok && t.Reason != ReasonOOMKilled {
		exit.Reason, exit.Output, exit.StopRequested = TruncateText(message.Reason), TruncateText(message.Message), message.StopRequested
	}
	return exit
}

// HasMadeDisk reports whether drover-machine says that a disk exists: the guest has run, or the machine
// ended after it had made the disk.
func HasMadeDisk(t *corev1.ContainerStateTerminated, disk string) bool {
	switch message, ok := readMessage(t); {
	case !ok:
		return false
	case message.Reason != driver.ExitNotStarted && message.Reason != exitInvalid:
		return true
	case disk == objects.RootDisk:
		return message.Disks.Root
	default:
		return slices.Contains(message.Disks.Volumes, disk)
	}
}

// LargeImage returns the disk that the machine of a pod refused to make, and how many bytes its image
// needs. ok is false if the machine has not ended for that reason.
func LargeImage(p *corev1.Pod) (disk string, bytes int64, ok bool) {
	status := objects.MachineStatus(p)
	if status == nil || status.State.Terminated == nil {
		return "", 0, false
	}
	message, ok := readMessage(status.State.Terminated)
	return message.TooLarge.Volume, message.TooLarge.Bytes, ok && message.Reason == driver.ExitNotStarted && message.TooLarge.Bytes > 0
}

// exitInvalid is the reason of drover-machine for an invalid description.
const exitInvalid = "InvalidDescription"

// ReasonOOMKilled is the kubelet's reason for a container that had too little memory.
const ReasonOOMKilled = "OOMKilled"

// maxOutput limits the bytes that TruncateText keeps.
const maxOutput = 1 << 10

// TruncateText returns the beginning of a text that others have written.
func TruncateText(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), maxOutput)], "")
}

// AssertedEnd returns the end of a pod that an operator asserts, by the taint out-of-service on its node
// or by the annotation about this pod. Neither counts while the node is ready: its kubelet reports then,
// and the machine may be shutting down. The node is nil if it is gone.
func AssertedEnd(node *corev1.Node, asserted bool, now time.Time) *driver.Exit {
	switch {
	case node != nil && IsNodeReady(node):
		return nil
	case asserted:
		return &driver.Exit{Code: codeKilled, Reason: ExitAsserted, Output: textAsserted, At: now}
	case node != nil && isOutOfService(node):
		return &driver.Exit{Code: codeKilled, Reason: ExitAsserted, Output: fmt.Sprintf("node %s has the taint %s", node.Name, corev1.TaintNodeOutOfService), At: now}
	}
	return nil
}

// IsAsserted reports whether an operator asserts that the machine of a pod is off, unless the pod records
// that the assertion is refused.
func IsAsserted(p *corev1.Pod, asserted types.UID) bool {
	return p.UID == asserted && !IsAssertionRefused(p)
}

// IsAssertionRefused reports whether a pod records that the assertion about its machine is refused.
func IsAssertionRefused(p *corev1.Pod) bool {
	return p.Annotations[objects.AnnotationAssertionRefused] != ""
}

// IsNodeReady reports whether the kubelet of a node reports.
func IsNodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// isOutOfService reports whether a node has the taint by which an operator asserts that it is off.
func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// ExitOfMachine returns the end of the machine's container, nil if it has not ended.
func ExitOfMachine(p *corev1.Pod) *driver.Exit {
	status := objects.MachineStatus(p)
	if status == nil || status.State.Terminated == nil {
		return nil
	}
	return exitOf(status.State.Terminated)
}

// HasOnlyMachineEnded reports whether the machine of a pod has ended, other containers have not, and nothing
// has asked for their end yet.
func HasOnlyMachineEnded(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && !objects.HasEndDeadline(p) && ExitOfMachine(p) != nil && !HasLostMachine(p) && len(OtherContainers(p)) > 0
}

// OtherContainers names the containers beside the machine's that have not ended, such as those that a webhook
// has added. A kubelet ends init containers that run on, and ephemeral ones, by itself after the others.
func OtherContainers(p *corev1.Pod) (names []string) {
	over := map[string]bool{objects.ContainerName: true}
	for _, s := range p.Status.ContainerStatuses {
		over[s.Name] = over[s.Name] || s.State.Terminated != nil
	}
	for _, c := range p.Spec.Containers {
		if !over[c.Name] {
			names = append(names, c.Name)
		}
	}
	return names
}
