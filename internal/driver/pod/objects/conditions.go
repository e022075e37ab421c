// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// FindCondition returns a condition of a pod, nil if it is not set.
func FindCondition(p *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	n := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if n < 0 {
		return nil
	}
	return &p.Status.Conditions[n]
}

// IsRunning reports whether the machine's container runs.
func IsRunning(p *corev1.Pod) bool {
	status := MachineStatus(p)
	return status != nil && status.State.Running != nil
}
