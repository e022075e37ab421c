// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ends

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// disruptions describes the reasons of condition DisruptionTarget. The name of a node follows.
var disruptions = map[string]string{
	"EvictionByEvictionAPI":               "evicted, as by a drain, from",
	corev1.PodReasonPreemptionByScheduler: "preempted on",
	"DeletionByTaintManager":              "deleted for a taint of",
	"DeletionByPodGC":                     "deleted after the loss of",
	corev1.PodReasonTerminationByKubelet:  "ended by the kubelet of",
}

// DisruptionOf describes the disruption that a pod shows. A deletion by this driver does not count as one.
func DisruptionOf(p *corev1.Pod, isDeletedHere bool) string {
	c := objects.FindCondition(p, corev1.DisruptionTarget)
	isOver := p.Status.Phase == corev1.PodFailed && p.Status.Reason != "" && !objects.HasEndDeadline(p)
	switch {
	case IsRejected(p): // Exit.Output says why
	case c != nil && c.Status == corev1.ConditionTrue && (p.DeletionTimestamp != nil || isOver):
		how, known := disruptions[c.Reason]
		if !known {
			how = "disrupted by " + c.Reason + " on"
		}
		return TruncateText(fmt.Sprintf("the pod was %s node %s (%s)", how, p.Spec.NodeName, c.Message))
	case isOver:
		return TruncateText(fmt.Sprintf("the pod failed on node %s (%s)", p.Spec.NodeName, strings.TrimSuffix(p.Status.Reason+": "+p.Status.Message, ": ")))
	case p.DeletionTimestamp != nil && !isDeletedHere:
		return "the pod was deleted"
	}
	return ""
}

// IsEvicted reports whether the kubelet itself has ended a pod: it used more than it may, or its node runs
// out of something, or shuts down. If the guest shuts down in time, the kubelet does not
// report an eviction: then the machine was asked to stop although the pod was not deleted.
func IsEvicted(p *corev1.Pod, end *driver.Exit) bool {
	return p.Status.Reason == reasonEvicted || disruptionReason(p) == corev1.PodReasonTerminationByKubelet || end.StopRequested && p.DeletionTimestamp == nil
}

// reasonEvicted is the kubelet's reason for a pod that it has evicted.
const reasonEvicted = "Evicted"
