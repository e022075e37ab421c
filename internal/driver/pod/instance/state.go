// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/machines"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// Server returns the server as its objects and its machine show it.
func (i *Instance) Server() driver.Server {
	s := driver.Server{
		UID: i.UID, ID: i.ID(), Namespace: i.Key.Namespace, Name: i.VM, Retained: i.IsRetained(), State: driver.StateStopped,
	}
	switch {
	case i.Pod == nil && i.Claims.lacksEnd(i.Asserted): // nothing proves that the last pod's machine has ended
		s.State, s.Err = driver.StateUnknown, errors.New(i.Lost())
	case i.Pod == nil:
		last := i.Claims.lastEnd()
		s.Run, s.Exit, s.Disruption = string(last.Pod), last.Exit, last.Disruption
	case objects.IsGated(i.Pod) && i.IsLeaving(): // it is deleted, and its object still exists
		i.describeLeaving(&s)
	case objects.IsGated(i.Pod): // it has not run yet
		s.NeedsEnsure = i.Pod.DeletionTimestamp != nil // its finalizer is to be removed
	default:
		i.describeRun(&s)
	}
	isPodOver := i.Pod == nil || (i.End() != nil && i.IsLeaving())
	if isPodOver && i.Claims.isDeleted() {
		s.State, s.Progress = driver.StateRemoving, heldText(i.Pod, i.Claims)
	}
	return s
}

// describeRun describes the run of an ungated pod: by proof of its end, else its deletion, else its containers' states.
func (i *Instance) describeRun(s *driver.Server) {
	p := i.Pod
	settings, machineExit := objects.ReadSettings(p), ends.ExitOfMachine(p)
	last, _ := i.reader.LastStatus(p.UID)
	s.Run, s.Host, s.Disruption = string(p.UID), p.Spec.NodeName, i.Disruption()
	s.Applied = driver.Resources{CPUMilli: settings.CPUMilli, MemoryBytes: settings.MemoryBytes}
	s.ImageID, s.Note, s.StartedAt = imageID(p, settings, i.reader.hasGuest(p)), describeTags(settings.Images), startOf(p)
	podExit := i.End()
	switch {
	case podExit != nil && i.IsLeaving():
		i.describeLeaving(s)
	case podExit != nil:
		s.State, s.Exit, s.NeedsEnsure = driver.StateStopped, podExit, p.DeletionTimestamp != nil
	case ends.HasLostMachine(p):
		s.State, s.Err = driver.StateUnknown, errors.New(i.Lost())
	case p.DeletionTimestamp != nil:
		s.State, s.Exit, s.Progress = driver.StateStopping, machineExit, stoppingText(p, i.node)
	case machineExit != nil:
		s.State, s.Exit, s.Progress, s.NeedsEnsure = driver.StateStopping, machineExit, otherContainersText(p, i.node), ends.HasOnlyMachineEnded(p)
	case i.reader.hasGuest(p):
		s.State, s.Addresses, s.Err = driver.StateRunning, addressesOf(p), i.node.lostError(p)
		s.HostLost = s.Err != nil
		i.describeMachine(s, last)
	default:
		s.State, s.Progress = driver.StateStarting, startingText(p, i.node, last.Copied)
		// Ensure makes the Secret of an ephemeral server after the pod, and may have failed in between.
		s.NeedsEnsure = objects.IsEphemeral(p) && (i.reader.HasSecret == nil || !i.reader.HasSecret(p.UID))
		s.IsUnschedulable = isUnschedulable(p)
	}
	if _, isUnrecorded := i.RefusesAssertion(); isUnrecorded { // the answer to an operator's assertion that it is off
		s.NeedsEnsure = true
	}
}

// describeLeaving describes a pod whose end is recorded and whose object still exists. An ephemeral server
// has no other object, so it counts as being removed.
func (i *Instance) describeLeaving(s *driver.Server) {
	if i.Claims.Root() == nil {
		s.State, s.Progress = driver.StateRemoving, heldText(i.Pod, i.Claims)
		return
	}
	s.State, s.IsLeaving, s.NeedsEnsure = driver.StateStopped, true, i.AssertedEnd() != nil
	s.Exit, s.Progress = i.End(), heldText(i.Pod, i.Claims)+": the next one is made after that"
}

// imageID returns the digest of the image that the root disk is made from. The checksum of the spec counts
// once the guest runs, since the machine has verified it by then.
func imageID(p *corev1.Pod, kept objects.Settings, hasGuest bool) string {
	if kept.MadeFrom != nil {
		return kept.MadeFrom.Digest
	}
	digest := objects.ImageDigest(p)
	if digest == "" && hasGuest {
		return kept.Checksum
	}
	return digest
}

// hasGuest reports whether the guest runs, so that its disks are made. Either the kubelet or the machine
// says so: a kubelet that was restarted may not know it for a moment.
func (r *Reader) hasGuest(p *corev1.Pod) bool {
	status := objects.MachineStatus(p)
	if status == nil || status.State.Running == nil {
		return false
	}
	last, _ := r.LastStatus(p.UID)
	return status.Started == nil || *status.Started || !last.StartedAt.IsZero()
}

// HasMadeDisk reports whether the machine of the pod is known to have made a disk, in this run or before.
func (i *Instance) HasMadeDisk(disk string) bool {
	if i.Pod == nil {
		return false
	}
	status := objects.MachineStatus(i.Pod)
	last, _ := i.reader.LastStatus(i.Pod.UID)
	switch {
	case i.seenRun == string(i.Pod.UID): // a kubelet may not report this run any more after a crash of its node
		return true
	case status == nil:
		return false
	case !last.StartedAt.IsZero():
		return true
	case status.State.Terminated != nil:
		return ends.HasMadeDisk(status.State.Terminated, disk)
	}
	return status.Started != nil && *status.Started
}

// describeMachine adds what was last observed of a machine that runs.
func (i *Instance) describeMachine(s *driver.Server, last control.Status) {
	s.Accelerator = last.Accelerator
	_, isBudgetMissing := i.reader.lackingBudget.Load(i.UID)
	lacksBudget := isBudgetMissing && i.Pod.Annotations[objects.AnnotationEviction] != ""
	owner, isKnown := i.reader.OwnerOf(i.UID)
	lacksLabels := isKnown && !objects.HasLabels(i.Pod, owner.Labels)
	s.NeedsEnsure = lacksBudget || lacksLabels || i.Claims.hasGrown(i.Pod) || i.UnrecordedBoot() != ""
	if i.IsPaused() {
		s.State = driver.StatePaused
	}
	if claim := i.Claims.DeletedClaim(i.Pod); s.Err == nil && claim != nil {
		s.Err = objects.DeletedClaimError(claim)
	}
	if s.Err == nil {
		s.Err = waitError(last.Waits)
	}
}

// startOf returns when the machine's container was started.
func startOf(p *corev1.Pod) (started time.Time) {
	status := objects.MachineStatus(p)
	switch {
	case status == nil:
	case status.State.Running != nil:
		return status.State.Running.StartedAt.Time
	case status.State.Terminated != nil:
		return status.State.Terminated.StartedAt.Time
	}
	return started
}

// addressesOf returns the IP addresses of a pod.
func addressesOf(p *corev1.Pod) []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// MachineOf returns the address and identity of a pod's machine. ok is false if the machine does not run.
func MachineOf(p *corev1.Pod) (m machines.Machine, ok bool) {
	if p.DeletionTimestamp != nil || p.Status.PodIP == "" || !objects.IsRunning(p) {
		return m, false
	}
	port, ok := objects.ControlPortOf(p)
	return machines.Machine{
		UID: types.UID(p.Labels[objects.LabelUID]), Pod: p.UID, Nonce: p.Annotations[objects.AnnotationNonce],
		Address: net.JoinHostPort(p.Status.PodIP, strconv.Itoa(int(port))),
	}, ok
}

// IsPaused reports whether the guest was paused when it was last observed. Before the first observation, a
// guest counts as paused if this driver has begun to pause it.
func (i *Instance) IsPaused() bool {
	if last, ok := i.reader.LastStatus(i.Pod.UID); ok {
		return last.State == control.StatePaused
	}
	return i.Pod.Annotations[objects.AnnotationPaused] != ""
}
