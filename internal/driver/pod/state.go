// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/control"
)

// toServer describes the server.
func (i *instance) toServer() driver.Server {
	s := driver.Server{
		UID: i.uid, ID: i.id(), Namespace: i.key.Namespace, Name: i.vm, Retained: i.isRetained(), State: driver.StateStopped,
	}
	switch {
	case i.isLost():
		s.State, s.Err = driver.StateUnknown, fmt.Errorf("the pod %s is gone, and nothing proves that its containers have ended", i.key)
	case i.pod == nil:
		last := endOf(i.root)
		s.Run, s.Exit = string(last.Pod), last.Exit
	case i.isGated():
	default:
		i.describeRun(&s)
	}
	if i.isBeingRemoved() {
		s.State = driver.StateRemoving
	}
	return s
}

// isBeingRemoved reports whether the disks are being deleted, and no pod is left that matters.
func (i *instance) isBeingRemoved() bool {
	if i.pod != nil && (i.end() == nil || !i.isLeaving()) {
		return false
	}
	if i.root != nil {
		return i.root.DeletionTimestamp != nil
	}
	volumes := i.sortedVolumes()
	return len(volumes) > 0 && volumes[0].DeletionTimestamp != nil
}

// describeRun describes the pod.
func (i *instance) describeRun(s *driver.Server) {
	p := i.pod
	kept := i.settings()
	s.Run = string(p.UID)
	s.Applied = driver.Resources{CPUMilli: kept.CPUMilli, MemoryBytes: kept.MemoryBytes}
	status := machineStatus(p)
	if status != nil && status.ImageID != "" {
		s.ImageID = imageDigest(status.ImageID)
	}
	s.StartedAt = startOf(p)
	switch exit := i.end(); {
	case exit != nil && i.isLeaving() && i.root == nil:
		s.State = driver.StateRemoving
	case exit != nil:
		s.State, s.Exit = driver.StateStopped, exit
		s.NeedsEnsure = p.DeletionTimestamp != nil && !i.isLeaving()
	case p.DeletionTimestamp != nil:
		s.State, s.Progress = driver.StateStopping, i.stoppingText()
	case status != nil && status.State.Running != nil:
		s.State, s.Err, s.Addresses = driver.StateRunning, unreachableNode(p), addressesOf(p)
		i.describeMachine(s)
	default:
		s.State, s.Progress = driver.StateStarting, startingText(p)
	}
}

// describeMachine adds what was last seen of a machine that runs.
func (i *instance) describeMachine(s *driver.Server) {
	last, _ := i.driver.machines.Last(i.pod.UID)
	s.Accelerator, s.NeedsEnsure = last.Accelerator, i.hasGrown()
	if i.isPaused() {
		s.State = driver.StatePaused
	}
	if s.Err == nil {
		s.Err = waitError(last.Waits)
	}
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
	status := machineStatus(p)
	switch {
	case status == nil:
	case status.State.Running != nil:
		return status.State.Running.StartedAt.Time
	case status.State.Terminated != nil:
		return status.State.Terminated.StartedAt.Time
	}
	return at
}

func machineStatus(p *corev1.Pod) *corev1.ContainerStatus {
	n := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == containerName })
	if n < 0 {
		return nil
	}
	return &p.Status.ContainerStatuses[n]
}

func addressesOf(p *corev1.Pod) []string {
	var all []string
	for _, ip := range p.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// unreachableNode returns an error if the control plane has marked a pod that runs as not ready,
// which it does when the node's kubelet reports no more. The pod has no probe that could do so.
func unreachableNode(p *corev1.Pod) error {
	n := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	m := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.ContainersReady })
	if n < 0 || m < 0 || p.Status.Conditions[n].Status != corev1.ConditionFalse || p.Status.Conditions[m].Status != corev1.ConditionTrue {
		return nil
	}
	return fmt.Errorf("node %s does not report: the machine may run still", p.Spec.NodeName)
}

// startingText says what a pod waits for, in the words of the scheduler and the kubelet.
func startingText(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "the pod is not scheduled: " + cmp.Or(c.Message, c.Reason)
		}
	}
	if s := machineStatus(p); s != nil && s.State.Waiting != nil && s.State.Waiting.Reason != "" {
		return clip(fmt.Sprintf("the container waits: %s: %s", s.State.Waiting.Reason, s.State.Waiting.Message))
	}
	if p.Spec.NodeName == "" {
		return "the pod waits to be scheduled"
	}
	return "the pod starts on node " + p.Spec.NodeName
}

// stoppingText says what ends a pod that cannot end by itself.
func (i *instance) stoppingText() string {
	return fmt.Sprintf("the pod ends on node %s; if that node is lost for good, power it off and then set its taint %s", i.pod.Spec.NodeName, corev1.TaintNodeOutOfService)
}

// imageDigest returns the digest in the kubelet's name of an image.
func imageDigest(id string) string {
	if _, digest, ok := strings.Cut(id, "@"); ok {
		return digest
	}
	return id
}
