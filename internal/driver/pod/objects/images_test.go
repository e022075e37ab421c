// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
)

// TestTaggedImages checks which images are to be resolved, and what a pod names them by then.
func TestTaggedImages(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	for name, c := range map[string]struct {
		source   string
		policy   driver.PullPolicy
		isTagged bool
		want     string // without the scheme
	}{
		"a tag":                   {"oci://registry.example/disks/debian:12", driver.PullIfNotPresent, true, "registry.example/disks/debian@" + digest},
		"a tag of a port":         {"oci://localhost:5000/debian:12", "", true, "localhost:5000/debian@" + digest},
		"no tag, which is latest": {"oci://registry.example/debian", driver.PullAlways, true, "registry.example/debian@" + digest},
		"no registry":             {"oci://debian:12", "", true, "docker.io/library/debian@" + digest},
		"a digest":                {"oci://registry.example/debian@" + digest, "", false, "registry.example/debian@" + digest},
		"a tag with a digest":     {"oci://registry.example/debian:12@" + digest, "", false, "registry.example/debian:12@" + digest},
		"an image of the node":    {"oci://registry.example/debian:12", driver.PullNever, false, "registry.example/debian:12"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := driver.Image{Source: c.source, PullPolicy: c.policy}
			for field, spec := range map[string]driver.ServerSpec{
				"image":       {Image: i},
				"image-data":  {RootDiskBytes: 1, Volumes: []driver.Volume{{Name: "data", Image: &i}}},
				"the default": {Image: driver.Image{PullPolicy: c.policy}},
			} {
				template := &Template{}
				if field == "the default" {
					template.Image, field = c.source, "image"
				}
				tagged := template.TaggedImages(spec)
				if slices.Contains(tagged, c.source) != c.isTagged {
					t.Errorf("%s: tagged are %v", field, tagged)
				}
				var resolved []driver.ResolvedImage
				for _, source := range tagged {
					resolved = append(resolved, driver.ResolvedImage{Source: source, Digest: digest})
				}
				p, err := template.NewPod(spec, Run{Nonce: "nonce", Images: resolved})
				if err != nil {
					t.Fatal(err)
				}
				n := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == field })
				if got := p.Spec.Volumes[n].Image.Reference; got != c.want {
					t.Errorf("%s: the pod names %q, want %q", field, got, c.want)
				}
			}
		})
	}
}

// TestRefusedImages checks that a source of another kind is refused with what is allowed.
func TestRefusedImages(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"pvc://golden", "https://images.example/debian.qcow2", "/images/debian.qcow2", "registry.example/debian:12", "oci://", "oci://Registry/UPPER"} {
		i := driver.Image{Source: source}
		for field, spec := range map[string]driver.ServerSpec{
			"spec.image.source":                      {Image: i},
			"spec.volumes[data].source.image.source": {RootDiskBytes: 1, Volumes: []driver.Volume{{Name: "data", Image: &i}}},
		} {
			err := (&Template{}).CheckSpec(spec)
			if says := fmt.Sprintf("%s is %q: ", field, source); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "oci://REFERENCE") {
				t.Errorf("%s %q: %v", field, source, err)
			}
		}
	}
}

// TestImageDigest checks that the kubelet's report precedes what the pod names.
func TestImageDigest(t *testing.T) {
	t.Parallel()
	p, err := (&Template{}).NewPod(driver.ServerSpec{Image: driver.Image{Source: "oci://registry.example/debian:12"}}, Run{Nonce: "nonce"})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerName, ImageID: "registry.example/drover-machine@sha256:1"}}
	if got := ImageDigest(p); got != "" {
		t.Errorf("by a tag, the digest is %q", got)
	}
	p.Status.ContainerStatuses[0].VolumeMounts = []corev1.VolumeMountStatus{{
		Name: "image", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "registry.example/debian@sha256:2"}},
	}}
	if got := ImageDigest(p); got != "sha256:2" {
		t.Errorf("the kubelet's digest is %q", got)
	}
}
