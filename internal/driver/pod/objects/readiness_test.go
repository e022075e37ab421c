// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
)

// TestReadinessOfBarePod sets the readiness of a pod from which a user has removed all annotations.
func TestReadinessOfBarePod(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{}
	SetReadiness(p, driver.ServerSpec{ReadinessProbe: &driver.Probe{Port: 80}})
	if p.Annotations[AnnotationReadiness] == "" {
		t.Errorf("the annotations are %v", p.Annotations)
	}
	SetReadiness(p, driver.ServerSpec{})
	if len(p.Annotations) > 0 {
		t.Errorf("without a probe the annotations are %v", p.Annotations)
	}
}

func TestRepositoryOf(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"oci://ubuntu:22.04": "docker.io/library/ubuntu", "oci://me/img": "docker.io/me/img", "oci://localhost:5000/img:1": "localhost:5000/img",
		"oci://registry.example/a/b@sha256:" + "0000000000000000000000000000000000000000000000000000000000000000": "registry.example/a/b",
	} {
		if got := RepositoryOf(source); got != want {
			t.Errorf("the repository of %s is %q, want %q", source, got, want)
		}
	}
}
