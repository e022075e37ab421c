// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// Server describes the server.
func (i *Instance) Server() driver.Server {
	s := driver.Server{
		UID: i.UID, ID: i.ID(), Namespace: i.Key.Namespace, Name: i.VM, Retained: i.IsRetained(), State: driver.StateStopped,
	}
	switch {
	case i.isPodLost():
		s.State, s.Err = driver.StateUnknown, errors.New(i.Lost())
	case i.Pod == nil:
		last := endOf(i.Root)
		s.Run, s.Exit, s.Disruption = string(last.Pod), last.Exit, last.Disruption
	case i.IsGated() && i.IsLeaving():
		i.describeLeaving(&s)
	case i.IsGated():
		s.NeedsEnsure = i.Pod.DeletionTimestamp != nil // its finalizer is to be removed
	default:
		i.describeRun(&s)
	}
	if i.isBeingRemoved() {
		s.State, s.Progress = driver.StateRemoving, i.heldText()
	}
	return s
}

// isBeingRemoved reports whether the disks are being deleted, and no pod is left that matters.
func (i *Instance) isBeingRemoved() bool {
	if i.Pod != nil && (i.End() == nil || !i.IsLeaving()) {
		return false
	}
	if i.Root != nil {
		return i.Root.DeletionTimestamp != nil
	}
	volumes := i.Volumes()
	return len(volumes) > 0 && volumes[0].DeletionTimestamp != nil
}

// describeRun describes the pod.
func (i *Instance) describeRun(s *driver.Server) {
	p := i.Pod
	kept := i.Settings()
	s.Run, s.Host, s.Disruption = string(p.UID), p.Spec.NodeName, i.Disruption()
	s.Applied = driver.Resources{CPUMilli: kept.CPUMilli, MemoryBytes: kept.MemoryBytes}
	status := objects.MachineStatus(p)
	s.ImageID, s.Note = i.imageID(kept), describeTags(kept.Images)
	s.StartedAt = startOf(p)
	switch exit := i.End(); {
	case exit != nil && i.IsLeaving():
		i.describeLeaving(s)
	case exit != nil:
		s.State, s.Exit, s.NeedsEnsure = driver.StateStopped, exit, p.DeletionTimestamp != nil
	case hasLostMachine(p):
		s.State, s.Err = driver.StateUnknown, errors.New(i.Lost())
	case p.DeletionTimestamp != nil:
		s.State, s.Progress = driver.StateStopping, i.stoppingText()
		s.Exit = exitOfMachine(status)
	case status != nil && status.State.Terminated != nil:
		s.State, s.Progress = driver.StateStopping, "the machine has ended, and other containers of the pod have not: delete the pod, or have them end by themselves"
		s.Exit = exitOf(status.State.Terminated)
	case i.hasGuest():
		s.State, s.Addresses = driver.StateRunning, addressesOf(p)
		s.Err = i.lostNode()
		s.HostLost = s.Err != nil
		i.describeMachine(s)
	default:
		s.State, s.Progress, s.NeedsEnsure = driver.StateStarting, i.startingText(), i.mayLackSecret()
		s.IsUnschedulable = isUnschedulable(p)
	}
	if _, differs := i.RefusesAssertion(); differs {
		s.NeedsEnsure = true
	}
}

// describeLeaving describes a pod whose end is recorded and whose object still exists. An ephemeral server has
// nothing else.
func (i *Instance) describeLeaving(s *driver.Server) {
	if i.Root == nil {
		s.State, s.Progress = driver.StateRemoving, i.heldText()
		return
	}
	s.State, s.IsLeaving, s.NeedsEnsure = driver.StateStopped, true, i.AssertedEnd() != nil
	s.Exit, s.Progress = i.End(), i.heldText()+": the next one is made after that"
}

// exitOfMachine returns the end of the machine's container, nil if it has not ended.
func exitOfMachine(status *corev1.ContainerStatus) *driver.Exit {
	if status == nil || status.State.Terminated == nil {
		return nil
	}
	return exitOf(status.State.Terminated)
}

// imageID returns the digest of what the root disk is made from. A checksum is one once the machine has
// compared it.
func (i *Instance) imageID(kept objects.Settings) string {
	if kept.MadeFrom != nil {
		return kept.MadeFrom.Digest
	}
	digest := objects.ImageDigest(i.Pod)
	if digest == "" && i.hasGuest() {
		return kept.Checksum
	}
	return digest
}

// hasGuest reports whether the guest runs in the machine's container: its disks are made. The kubelet says
// so, or the machine has. A kubelet that was restarted may have forgotten it for a moment.
func (i *Instance) hasGuest() bool {
	status := objects.MachineStatus(i.Pod)
	if status == nil || status.State.Running == nil {
		return false
	}
	last, _ := i.reader.LastStatus(i.Pod.UID)
	return status.Started == nil || *status.Started || !last.StartedAt.IsZero()
}

// HasMadeDisk reports whether the machine of the pod is known to have made a disk, in this run or before
// it.
func (i *Instance) HasMadeDisk(disk string) bool {
	if i.Pod == nil {
		return false
	}
	status := objects.MachineStatus(i.Pod)
	last, _ := i.reader.LastStatus(i.Pod.UID)
	switch {
	case i.seenRun == string(i.Pod.UID): // after a crash of the node the kubelet may no longer report it
		return true
	case status == nil:
		return false
	case !last.StartedAt.IsZero():
		return true
	case status.State.Terminated != nil:
		return hasMadeDisk(status.State.Terminated, disk)
	}
	return status.Started != nil && *status.Started
}

// diskText says how far the machine is that makes a disk, as was seen last.
func (i *Instance) diskText() string {
	text := "the machine on node " + i.Pod.Spec.NodeName + " makes its disks"
	last, _ := i.reader.LastStatus(i.Pod.UID)
	switch {
	case last.Copied == nil:
	case last.Copied.TotalBytes == 0:
		text += fmt.Sprintf(": %d MB of the image", last.Copied.Bytes/megabyte)
	default:
		text += fmt.Sprintf(": %d of %d MB of the image", last.Copied.Bytes/megabyte, last.Copied.TotalBytes/megabyte)
	}
	return text
}

// megabyte is the unit of sizes in messages.
const megabyte = 1_000_000

// mayLackSecret reports whether a pod that was made without a gate may have no Secret yet: the call
// that made it may have ended before it made that too, in this process or another. Ensure finds out.
func (i *Instance) mayLackSecret() bool {
	return objects.IsEphemeral(i.Pod) && (i.reader.HasSecret == nil || !i.reader.HasSecret(i.Pod.UID))
}

// describeMachine adds what was last seen of a machine that runs.
func (i *Instance) describeMachine(s *driver.Server) {
	last, _ := i.reader.LastStatus(i.Pod.UID)
	s.Accelerator = last.Accelerator
	s.NeedsEnsure = i.hasGrown() || i.lacksBudget() || i.lacksLabels() || i.UnrecordedBoot() != ""
	if i.IsPaused() {
		s.State = driver.StatePaused
	}
	if s.Err == nil {
		s.Err = waitError(last.Waits)
	}
}

// lacksLabels reports whether the labels of the VirtualMachine have changed, as far as that is known.
func (i *Instance) lacksLabels() bool {
	owner, known := i.reader.OwnerOf(i.UID)
	return known && !objects.HasLabels(i.Pod, owner.Labels)
}

// waitError returns what a guest waits for.
func waitError(waits control.Wait) error {
	switch waits {
	case control.WaitRoom:
		return errors.New("the guest waits: the volume of one of its disks has no room")
	case control.WaitDisk:
		return errors.New("the guest waits: one of its disks fails")
	case control.WaitNone:
	}
	return nil
}

// startOf returns when the machine's container was started.
func startOf(p *corev1.Pod) (at time.Time) {
	status := objects.MachineStatus(p)
	switch {
	case status == nil:
	case status.State.Running != nil:
		return status.State.Running.StartedAt.Time
	case status.State.Terminated != nil:
		return status.State.Terminated.StartedAt.Time
	}
	return at
}

func addressesOf(p *corev1.Pod) []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// lostNode returns an error if the node of the pod does not report, so that the machine may run or not.
func (i *Instance) lostNode() error {
	isLost := isCutOff(i.Pod)
	if i.isNodeRead && !i.isNodeUnknown {
		isLost = i.node == nil || !isReady(i.node)
	}
	if !isLost {
		return nil
	}
	return fmt.Errorf("node %s does not report: the machine may run still%s", i.Pod.Spec.NodeName, i.refusalText())
}

// isCutOff reports whether the control plane has marked a pod that runs as not ready, which it does when
// the node's kubelet reports no more, and leaves the kubelet's reason. Where the pod's probe had failed
// before, both conditions are false: the VirtualMachine is not ready by the same probe then.
func isCutOff(p *corev1.Pod) bool { return mayBeCutOff(p) && !isGateFalse(p) }

// mayBeCutOff reports whether a pod is not ready although its containers are. The node tells whether it is lost,
// since a pod with a false readiness gate looks the same before and after.
func mayBeCutOff(p *corev1.Pod) bool {
	ready, containers := findCondition(p, corev1.PodReady), findCondition(p, corev1.ContainersReady)
	return ready != nil && containers != nil && ready.Status == corev1.ConditionFalse && containers.Status == corev1.ConditionTrue
}

// isGateFalse reports whether the kubelet says that a readiness gate, which a webhook may have added, keeps a pod
// from being ready.
func isGateFalse(p *corev1.Pod) bool {
	ready := findCondition(p, corev1.PodReady)
	return ready != nil && ready.Reason == reasonGatesNotReady
}

// reasonGatesNotReady is the kubelet's reason for a pod that only its readiness gates keep from being ready.
const reasonGatesNotReady = "ReadinessGatesNotReady"

// startingText says what the pod waits for, in the words of the scheduler and the kubelet.
func (i *Instance) startingText() string {
	p := i.Pod
	if lost := i.lostNode(); lost != nil {
		return lost.Error()
	}
	switch {
	case IsRunning(p):
		return i.diskText()
	case IsRejected(p):
		return truncateText(fmt.Sprintf("the kubelet of node %s rejects the pod, and may have yet to end its container: the next one is made once that has lasted for %v: %s: %s",
			p.Spec.NodeName, rejectionDelay, p.Status.Reason, p.Status.Message))
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "the pod is not scheduled: " + cmp.Or(c.Message, c.Reason)
		}
	}
	if s := objects.MachineStatus(p); s != nil && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
		return truncateText(fmt.Sprintf("the container waits: %s: %s", s.State.Waiting.Reason, s.State.Waiting.Message))
	}
	if p.Spec.NodeName == "" {
		return "the pod waits to be scheduled"
	}
	return "the pod starts on node " + p.Spec.NodeName
}

// stoppingText says why a pod ends, if it was not just deleted, and what ends one that cannot end by
// itself, unless its node is known to be ready.
func (i *Instance) stoppingText() string {
	why := ""
	if c := findCondition(i.Pod, corev1.DisruptionTarget); c != nil && c.Status == corev1.ConditionTrue {
		why = i.Disruption() + "; "
	}
	text := why + "the pod ends on node " + i.Pod.Spec.NodeName
	if i.node == nil || !isReady(i.node) {
		text += "; if that node is lost for good, power it off and then set its taint " + corev1.TaintNodeOutOfService
	}
	return text + i.refusalText()
}

// refusalText says how an operator asserts again that the machine is off.
func (i *Instance) refusalText() string {
	if !i.isAssertionRefused() {
		return ""
	}
	return "; that its machine is off was asserted while its node was ready, which does not count: remove that annotation, and set it again once this message has changed"
}

// describeTags returns what was not done about tags of images, empty if nothing was left out.
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

// IsRunning reports whether the machine's container runs.
func IsRunning(p *corev1.Pod) bool {
	status := objects.MachineStatus(p)
	return status != nil && status.State.Running != nil
}

// MachineOf returns where the machine of a pod is reached. ok is false if it does not run.
func MachineOf(p *corev1.Pod) (m machines.Machine, ok bool) {
	if p.DeletionTimestamp != nil || p.Status.PodIP == "" || !IsRunning(p) {
		return m, false
	}
	port, ok := objects.ControlPortOf(p)
	return machines.Machine{
		UID: types.UID(p.Labels[objects.LabelUID]), Pod: p.UID, Nonce: p.Annotations[objects.AnnotationNonce],
		Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))),
	}, ok
}

// IsPaused reports whether the guest is paused, as was seen last. Until it was seen, that is so if
// this driver has begun to pause it.
func (i *Instance) IsPaused() bool {
	if last, ok := i.reader.LastStatus(i.Pod.UID); ok {
		return last.State == control.StatePaused
	}
	return i.Pod.Annotations[objects.AnnotationPaused] != ""
}
