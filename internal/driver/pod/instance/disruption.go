// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// disruptions are the reasons of condition DisruptionTarget in words that a node's name follows.
var disruptions = map[string]string{
	"EvictionByEvictionAPI":               "evicted, as by a drain, from",
	corev1.PodReasonPreemptionByScheduler: "preempted on",
	"DeletionByTaintManager":              "deleted for a taint of",
	"DeletionByPodGC":                     "deleted after the loss of",
	corev1.PodReasonTerminationByKubelet:  "ended by the kubelet of",
}

// Disruption describes how others than the guest end the pod or have ended it, as the pod shows it,
// or, after its end, as that was recorded. It is empty if nothing shows that.
func (i *Instance) Disruption() string {
	last := endOf(i.Root)
	if i.Pod == nil || last.Pod != "" && last.Pod == i.Pod.UID {
		return last.Disruption
	}
	return disruptionOf(i.Pod, i.IsDeletedHere)
}

// disruptionOf describes the disruption that a pod shows. A deletion by this driver is none, as far as
// that is known.
func disruptionOf(p *corev1.Pod, isDeletedHere bool) string {
	c := findCondition(p, corev1.DisruptionTarget)
	isOver := p.Status.Phase == corev1.PodFailed && p.Status.Reason != ""
	switch {
	case IsRejected(p): // its end says why
	case c != nil && c.Status == corev1.ConditionTrue && (p.DeletionTimestamp != nil || isOver):
		how, known := disruptions[c.Reason]
		if !known {
			how = "disrupted by " + c.Reason + " on"
		}
		return truncateText(fmt.Sprintf("the pod was %s node %s (%s)", how, p.Spec.NodeName, c.Message))
	case isOver:
		return truncateText(fmt.Sprintf("the pod failed on node %s (%s)", p.Spec.NodeName, strings.TrimSuffix(p.Status.Reason+": "+p.Status.Message, ": ")))
	case p.DeletionTimestamp != nil && !isDeletedHere:
		return "the pod was deleted"
	}
	return ""
}

// isUnschedulable reports whether the scheduler has found no node for a pod.
func isUnschedulable(p *corev1.Pod) bool {
	c := findCondition(p, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable
}

func findCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	n := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if n < 0 {
		return nil
	}
	return &p.Status.Conditions[n]
}
