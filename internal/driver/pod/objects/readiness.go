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
	// readinessFile is the file in the container that has AnnotationReadiness and follows its changes.
	readinessFile = "readiness.json"
	// kubeletTimeout, in seconds, is longer than any timeout in the annotation, since the program that the
	// kubelet runs ends by itself.
	kubeletTimeout = 65
	// startedTimeout is how long one run of the startup probe waits.
	startedTimeout = "30s"
)

// readinessOf returns the value of AnnotationReadiness, "" without a probe.
func readinessOf(p *driver.Probe) string {
	if p == nil {
		return ""
	}
	text, _ := json.Marshal(description.Readiness{Port: p.Port, TimeoutSeconds: p.TimeoutSeconds})
	return string(text)
}

// readinessProbe returns the readiness probe of a pod, nil for a pod that is ready from its start on. It
// asks drover-machine, since QEMU accepts connections for a guest that has not booted. The annotation
// says whom to ask, because the probe of a pod cannot change.
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

// startupProbe returns the startup probe of a pod that makes a disk before its guest runs, nil for a pod
// whose guest runs soon after its container. The status of the pod keeps the result, so it is known after
// a failover and without the control channel. The probe never gives up, since an image may be large. One
// run waits for long, because each costs the node more than a tenth of a second of CPU time.
func startupProbe(makesDisk bool) *corev1.Probe {
	if !makesDisk {
		return nil
	}
	return &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/drover-machine", "probe", "-run-folder", runFolder, "-started", "-timeout", startedTimeout}}},
		PeriodSeconds: 1, TimeoutSeconds: kubeletTimeout, FailureThreshold: math.MaxInt32,
	}
}

// setReadiness sets what the readiness probe of a pod asks.
func setReadiness(p *corev1.Pod, spec driver.ServerSpec) {
	delete(p.Annotations, AnnotationReadiness)
	if text := readinessOf(spec.ReadinessProbe); text != "" {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, AnnotationReadiness, text)
	}
}
