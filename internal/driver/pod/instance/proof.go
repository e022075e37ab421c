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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// exitAsserted is the reason of an end that an operator asserts.
const (
	exitAsserted = "Asserted"
	textAsserted = "an operator has asserted that the machine is off"
)

// ProvenEnd returns how a pod has ended, or nil as long as nothing proves that none of its
// containers runs.
//
// What proves it: a pod that is being deleted and never had a node, since the scheduler binds no
// such pod; the kubelet's report that every container has terminated, of which none starts again
// under restartPolicy Never; the kubelet's refusal to run the pod at all, once it has lasted (End). The phase alone proves
// nothing about a machine that was started, since controllers write it for nodes that do not answer,
// nor does a node that is not ready or gone, nor a state that the kubelet inferred: lost.go.
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
	reason := disruptionReason(pod)
	return reason == "" || reason == corev1.PodReasonTerminationByKubelet
}

// rejectionDelay is how long a kubelet's rejection of a pod has to stand before it proves an end. A kubelet that was
// restarted rejects a pod whose container runs before it ends that, and nothing on the pod tells whether it had run.
const rejectionDelay = time.Minute

// isJustRejected reports whether the pod was rejected, by this process's clock, too short a time ago for that to
// prove its end.
func (i *Instance) isJustRejected() bool {
	if !IsRejected(i.Pod) || i.Claims.HasEnded(i.Pod.UID) {
		return false
	}
	now := i.reader.Clock.Now()
	first, _ := i.reader.rejectedSince.LoadOrStore(i.Pod.UID, now)
	return now.Sub(first) < rejectionDelay
}

// ForgetRejections forgets the rejections of other pods than these.
func (r *Reader) ForgetRejections(isPresent func(pod types.UID) bool) {
	r.rejectedSince.DeleteFunc(func(pod types.UID, _ time.Time) bool { return !isPresent(pod) })
}

// disruptionReason returns the reason of a pod's condition DisruptionTarget, "" if it is not set.
func disruptionReason(pod *corev1.Pod) string {
	if c := findCondition(pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		return c.Reason
	}
	return ""
}

// ImageUse reports whether a pod that has ended may have used its images, and else whether its
// node has failed to: no container was created there. Both are false for a pod that no node accepted.
func ImageUse(p *corev1.Pod) (isUsed, hasFailed bool) {
	switch {
	case p.Spec.NodeName == "" || IsRejected(p):
		return false, false
	case ProvenEnd(p) == nil: // an operator has asserted the end, and what the kubelet reported last may be old
		return true, false
	}
	isUsed = HasContainer(p)
	return isUsed, !isUsed
}

// HasContainer reports whether the machine's container was created, as far as its kubelet has reported.
func HasContainer(p *corev1.Pod) bool {
	status := objects.MachineStatus(p)
	return status != nil && hasContainer(status)
}

// hasContainer reports whether a container was created. Of one that has run and that the runtime has lost, a
// kubelet reports no ID, but a restart or an earlier end.
func hasContainer(s *corev1.ContainerStatus) bool {
	return s.ContainerID != "" || s.RestartCount > 0 || s.LastTerminationState.Terminated != nil
}

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
	case isReported, over && !hasRun && s.State.Running == nil: // deleted before all images were there, say
		return &driver.Exit{Code: codeKilled, Reason: driver.ExitNeverRan, At: finishedAt(s)}
	}
	return nil
}

// codeKilled is what a kubelet reports of a container whose exit code it does not know.
const codeKilled = 137

func finishedAt(s *corev1.ContainerStatus) (at time.Time) {
	if s.State.Terminated != nil {
		at = s.State.Terminated.FinishedAt.Time
	}
	return at
}

// mayRunOthers reports whether a container other than the machine's may run. Of those that never started, such
// as the init containers of a pod that was deleted early, a kubelet reports for ever that they wait, or nothing:
// for them the end of the pod counts.
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

// isOver reports whether the kubelet has ended a pod: it sets a terminal phase once the runtime has no container
// of the pod that runs. The other controller that does, for lost nodes, says so by a condition.
func isOver(pod *corev1.Pod) bool {
	switch disruptionReason(pod) {
	case "", corev1.PodReasonTerminationByKubelet:
	case "EvictionByEvictionAPI", corev1.PodReasonPreemptionByScheduler, "DeletionByTaintManager": // they ask for a deletion
	default:
		return false
	}
	return isTerminal(pod.Status.Phase) && slices.ContainsFunc(pod.ManagedFields, isPhaseOfKubelet)
}

func isTerminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// isPhaseOfKubelet reports whether an entry of managedFields says that a kubelet has written the phase of a pod.
// Where the kubelet is part of another program, as in k3s, it is known by writing the containers' states too.
func isPhaseOfKubelet(e metav1.ManagedFieldsEntry) bool {
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

// exitOf translates the end of the machine's container. drover-machine leaves its reason in the
// termination message; without one, the kubelet's holds. A machine that a signal ended, as in a drain, is
// one whose host was shut down: its guest had not decided to end.
func exitOf(t *corev1.ContainerStateTerminated) *driver.Exit {
	exit := &driver.Exit{Code: int(t.ExitCode), Reason: t.Reason, At: t.FinishedAt.Time}
	if message, ok := readMessage(t); ok && t.Reason != reasonOOMKilled {
		exit.Reason, exit.Output, exit.StopRequested = truncateText(message.Reason), truncateText(message.Message), message.StopRequested
	}
	return exit
}

// hasMadeDisk reports whether drover-machine says that there is a disk: its guest has run, or it had come as
// far as to make it.
func hasMadeDisk(t *corev1.ContainerStateTerminated, disk string) bool {
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

// LargeImage returns the disk that the machine of the pod has not made, since the image needs more bytes than the
// disk was to have. ok is false if that is not why the machine has ended.
func LargeImage(p *corev1.Pod) (disk string, bytes int64, ok bool) {
	status := objects.MachineStatus(p)
	if status == nil || status.State.Terminated == nil {
		return "", 0, false
	}
	message, ok := readMessage(status.State.Terminated)
	return message.TooLarge.Volume, message.TooLarge.Bytes, ok && message.Reason == driver.ExitNotStarted && message.TooLarge.Bytes > 0
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
		return &driver.Exit{Code: codeKilled, Reason: exitAsserted, Output: textAsserted, At: now}
	case node != nil && isOutOfService(node):
		return &driver.Exit{Code: codeKilled, Reason: exitAsserted, Output: fmt.Sprintf("node %s has the taint %s", node.Name, corev1.TaintNodeOutOfService), At: now}
	}
	return nil
}

// isAsserted reports whether an operator asserts that the machine of a pod is off, and the pod does not have
// recorded that the assertion is refused.
func isAsserted(p *corev1.Pod, asserted types.UID) bool {
	return p.UID == asserted && !isAssertionRefused(p)
}

func isAssertionRefused(p *corev1.Pod) bool {
	return p.Annotations[objects.AnnotationAssertionRefused] != ""
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func isOutOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// EndRecord returns the value of AnnotationEnd for the pod, whose end is proven.
func (i *Instance) EndRecord() (string, error) {
	record, err := json.Marshal(endRecord{Pod: i.Pod.UID, Exit: i.End(), Disruption: i.Disruption()})
	return string(record), err
}
