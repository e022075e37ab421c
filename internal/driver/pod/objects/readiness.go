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
	// readinessFile is the file in the container that holds the value of AnnotationReadiness, even after a change.
	readinessFile = "readiness.json"
	// kubeletTimeout, in seconds, is longer than any timeout in AnnotationReadiness, which the program of the
	// probe enforces itself.
	kubeletTimeout = 65
	// startedTimeout is how long one run of the startup probe waits.
	startedTimeout = "30s"
)

// readinessAnnotation returns the value of AnnotationReadiness, or "" if p is nil.
func readinessAnnotation(p *driver.Probe) string {
	if p == nil {
		return ""
	}
	text, _ := json.Marshal(description.Readiness{Port: p.Port, TimeoutSeconds: p.TimeoutSeconds})
	return string(text)
}

// readinessProbe returns the readiness probe of a pod, or nil for a pod that is ready as soon as it starts.
// It runs drover-machine instead of connecting to the port, since QEMU accepts connections even before the
// guest has booted. The annotation has the port and the timeout, because a pod's probe cannot be changed.
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

// startupProbe returns the startup probe of a pod that makes a disk before its guest runs, or nil for a pod
// whose guest runs soon after its container. The status of the pod keeps the result, so it is known after
// a failover, even if the control channel is down. The probe never gives up, since an image may be large.
// Each run waits a long time, because it costs the node more than a tenth of a second of CPU time.
func startupProbe(makesDisk bool) *corev1.Probe {
	if !makesDisk {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/drover-machine", "probe", "-run-folder", runFolder, "-started", "-timeout", startedTimeout}}},
		PeriodSeconds: 1, TimeoutSeconds: kubeletTimeout, FailureThreshold: math.MaxInt32,
	}
}

// setReadinessAnnotation sets or removes the annotation that the readiness probe of a pod reads.
func setReadinessAnnotation(p *corev1.Pod, spec driver.ServerSpec) {
	delete(p.Annotations, AnnotationReadiness)
	if text := readinessAnnotation(spec.ReadinessProbe); text != "" {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationReadiness, text)
	}
}
