// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
)

// TestRefusedVolumes checks what no pod can have.
func TestRefusedVolumes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		says   string
	}{
		"image":     {func(s *driver.ServerSpec) { s.Volumes[0].Image = &driver.Image{Source: "x/y"} }, driver.ErrInvalid, `spec.volumes[data].source.image.source is "x/y"`},
		"ephemeral": {func(s *driver.ServerSpec) { s.Ephemeral = true }, driver.ErrUnsupported, "spec.volumes: "},
		"too many": {func(s *driver.ServerSpec) {
			for n := range maxClaims {
				s.Objects = append(s.Objects, driver.Object{Kind: KindClaim, Name: fmt.Sprint(n), UID: types.UID("x")})
			}
		}, driver.ErrInvalid, "has 62 disks, and can have 60"},
		"as many as possible": {func(s *driver.ServerSpec) {
			for n := range maxClaims {
				s.Objects = append(s.Objects, driver.Object{Kind: KindClaim, Name: fmt.Sprint(n), UID: types.UID("x")})
			}
			s.Objects[0].Name, s.Objects[1].Name = BaseName("", ""), ClaimName(BaseName("", ""), "data")
		}, nil, "<nil>"},
		"name": {func(s *driver.ServerSpec) { s.Name = strings.Repeat("a", 64) }, driver.ErrInvalid, "of 64 characters"},
	} {
		spec := driver.ServerSpec{Power: driver.PowerOn, Image: driver.Image{Source: "oci://x/y"}, Volumes: []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}}
		c.change(&spec)
		err := (&Template{}).CheckSpec(spec)
		assert.True(t, errors.Is(err, c.kind) && strings.Contains(fmt.Sprint(err), c.says), "%s: %v, want %v with %q", name, err, c.kind, c.says)
	}
}

// TestFit checks that the volume of a disk has room for it, and that a smaller volume has room for
// the size that Fit returns.
func TestFit(t *testing.T) {
	t.Parallel()
	for _, bytes := range []int64{1 << 20, 10 << 30, 1<<50 - 512} {
		claim := (&Template{}).NewClaim(driver.ServerSpec{}, Disk{Bytes: bytes}, "")
		got := Fit(bytes, claim)
		assert.True(t, got == bytes, "a disk of %d has %d in a volume made for it", bytes, got)
		less := Fit(2*bytes, claim)
		if size := ClaimSize(max(less, 1)); less > bytes || less < bytes-bytes/100-64 || size.Value() > RoomOf(claim) {
			t.Errorf("in the volume of a disk of %d, one of %d has %d", bytes, 2*bytes, less)
		}
	}
}

// TestReadinessOfBarePod sets the readiness of a pod from which a user has removed all annotations.
func TestReadinessOfBarePod(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{}
	setReadinessAnnotation(p, driver.ServerSpec{ReadinessProbe: &driver.Probe{Port: 80}})
	assert.True(t, p.Annotations[AnnotationReadiness] != "", "the annotations are %v", p.Annotations)
	setReadinessAnnotation(p, driver.ServerSpec{})
	assert.True(t, len(p.Annotations) == 0, "without a probe the annotations are %v", p.Annotations)
}

func TestRepositoryOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"oci://ubuntu:22.04": "docker.io/library/ubuntu", "oci://me/img": "docker.io/me/img", "oci://localhost:5000/img:1": "localhost:5000/img",
		"oci://registry.example/a/b@sha256:" + "0000000000000000000000000000000000000000000000000000000000000000": "registry.example/a/b",
	} {
		assert.Equal(t, "the repository of "+text, RepositoryOf(source.Parse(text)), want)
	}
}
