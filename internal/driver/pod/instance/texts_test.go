// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/test/assert"
)

// TestStartingText checks what is said of a pod that has not started: nothing of Drover's gate, which
// Drover removes by itself, and nothing of a message that is missing.
func TestStartingText(t *testing.T) {
	t.Parallel()
	const ours, gates = "cloudnative.tw/stopped", "Scheduling is blocked due to non-empty scheduling gates"
	for name, tc := range map[string]struct {
		gates           []string
		reason, message string // of the condition PodScheduled
		waits           string // of the container
		want            string
	}{
		"Drover's gate":             {[]string{ours}, corev1.PodReasonSchedulingGated, gates, "", "the pod waits to be scheduled"},
		"a gate just removed":       {nil, corev1.PodReasonSchedulingGated, gates, "", "the pod waits to be scheduled"},
		"another's gate":            {[]string{"queue"}, corev1.PodReasonSchedulingGated, gates, "", "the pod is not scheduled: " + gates},
		"Drover's and another's":    {[]string{ours, "queue"}, corev1.PodReasonSchedulingGated, gates, "", "the pod is not scheduled: " + gates},
		"no node has room":          {nil, corev1.PodReasonUnschedulable, "0/3 nodes are available", "", "the pod is not scheduled: 0/3 nodes are available"},
		"a container without words": {nil, "", "", "ContainerCreating", "the container waits: ContainerCreating"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &corev1.Pod{}
			for _, gate := range tc.gates {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
			}
			isOurs := len(tc.gates) > 0 && tc.gates[0] == ours
			assert.Require(t, objects.IsGated(p) == isOurs, "the pod is gated: %v", !isOurs)
			if tc.reason != "" {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: tc.reason, Message: tc.message}}
			}
			if tc.waits != "" {
				waiting := &corev1.ContainerStateWaiting{Reason: tc.waits}
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: objects.ContainerName, State: corev1.ContainerState{Waiting: waiting}}}
			}
			got := startingText(p, nodeState{}, nil)
			assert.True(t, got == tc.want, "got %q, want %q", got, tc.want)
		})
	}
}
