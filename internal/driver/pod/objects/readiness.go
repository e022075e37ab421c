// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"math"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/description"
)

const (
	// readinessFile has AnnotationReadiness in the container, and follows its changes.
	readinessFile = "readiness.json"
	// kubeletTimeout, in seconds, is longer than any time that the annotation allows: the program
	// that the kubelet runs ends by itself.
	kubeletTimeout = 65
	// startedTimeout is how long one run of the startup probe waits.
	startedTimeout = "30s"
)

// readinessOf returns the value of AnnotationReadiness, empty without a probe.
func readinessOf(p *driver.Probe) string {
	if p == nil {
		return ""
	}
	text, _ := json.Marshal(description.Readiness{Port: p.Port, TimeoutSeconds: p.TimeoutSeconds})
	return string(text)
}

// readinessProbe returns the probe of a pod, nil for a pod that is ready from its start on. It asks
// drover-machine, since QEMU accepts connections in the place of a guest that has not booted. What it
// asks is in the annotation, because the probe of a pod cannot change.
func readinessProbe(p *driver.Probe) *corev1.Probe {
	if p == nil {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{
			"/drover-machine", "probe", "-run-folder", runFolder, "-readiness", path.Join(descriptionFolder, readinessFile),
		}}},
		PeriodSeconds: p.PeriodSeconds, TimeoutSeconds: kubeletTimeout,
	}
}

// startupProbe returns the probe of a pod that makes a disk before its guest runs, nil for one whose guest
// runs soon after its container. The kubelet keeps the answer in the status of the pod, so it is known
// after a failover and without the control channel. It never gives up: an image may be large. The program
// waits, since the kubelet's execution of one costs the node more than a tenth of a second of CPU.
func startupProbe(makesDisk bool) *corev1.Probe {
	if !makesDisk {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/drover-machine", "probe", "-run-folder", runFolder, "-started", "-timeout", startedTimeout}}},
		PeriodSeconds: 1, TimeoutSeconds: kubeletTimeout, FailureThreshold: math.MaxInt32,
	}
}

// setReadiness has the probe of a pod ask what the spec says now.
func setReadiness(p *corev1.Pod, spec driver.ServerSpec) {
	delete(p.Annotations, AnnotationReadiness)
	if text := readinessOf(spec.ReadinessProbe); text != "" {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationReadiness, text)
	}
}
