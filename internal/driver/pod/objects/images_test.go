// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
)

// TestTaggedImages checks which images are to be resolved, and how a pod names them afterwards.
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
				assert.True(t, slices.Contains(tagged, source.Parse(c.source)) == c.isTagged, "%s: tagged are %v", field, tagged)
				var resolved []driver.ResolvedImage
				for _, from := range tagged {
					resolved = append(resolved, driver.ResolvedImage{Source: from.Text(), Digest: digest})
				}
				p, err := template.NewPod(spec, Run{Nonce: "nonce", Images: resolved})
				assert.NoError(t, err)
				n := slices.IndexFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == field })
				assert.Equal(t, field+": the pod names", p.Spec.Volumes[n].Image.Reference, c.want)
			}
		})
	}
}

// TestRefusedImages checks that an image that no pod can get is refused with the allowed forms.
func TestRefusedImages(t *testing.T) {
	t.Parallel()
	const url, checksum = "https://images.example/debian.qcow2?secret", "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for name, c := range map[string]struct {
		image driver.Image
		kind  error
		says  string
	}{
		"a claim":              {driver.Image{Source: "pvc://golden"}, driver.ErrUnsupported, `.source is "pvc://golden": driver pod copies no`},
		"a cloud image's name": {driver.Image{Source: "cloud://debian/13"}, driver.ErrUnsupported, `.source is "cloud://debian/13": driver pod takes no names of cloud images; it must be`},
		"a file":               {driver.Image{Source: "/images/debian.qcow2"}, driver.ErrInvalid, `.source is "/images/debian.qcow2": it must be oci://REFERENCE`},
		"no scheme":            {driver.Image{Source: "registry.example/debian:12"}, driver.ErrInvalid, `.source is "registry.example/debian:12": it must be oci://REFERENCE`},
		"no reference":         {driver.Image{Source: "oci://"}, driver.ErrInvalid, `.source is "oci://": it must be oci://REFERENCE`},
		"no valid reference":   {driver.Image{Source: "oci://Registry/UPPER"}, driver.ErrInvalid, `.source is "oci://Registry/UPPER": it must be oci://REFERENCE`},
		"URL without a host":   {driver.Image{Source: "https:///x", Checksum: checksum}, driver.ErrInvalid, ".source is \"https:///x\": it must be"},
		"URL of another kind":  {driver.Image{Source: "ftp://images.example/x", Checksum: checksum}, driver.ErrInvalid, ".source is \"ftp://images.example/x\": it must be"},
		"URL without checksum": {driver.Image{Source: url}, driver.ErrInvalid, ".checksum is missing: an image from a web server needs one"},
		"URL that is present":  {driver.Image{Source: url, Checksum: checksum, PullPolicy: driver.PullNever}, driver.ErrUnsupported, ".pullPolicy is Never"},
		"checksum":             {driver.Image{Source: url, Checksum: "md5"}, driver.ErrInvalid, `.checksum is "md5": it must be sha256:`},
	} {
		for field, spec := range map[string]driver.ServerSpec{
			"spec.image":                      {Image: c.image},
			"spec.volumes[data].source.image": {RootDiskBytes: 1, Volumes: []driver.Volume{{Name: "data", Image: &c.image}}},
		} {
			err := (&Template{}).CheckSpec(spec)
			assert.True(t, errors.Is(err, c.kind) && strings.Contains(fmt.Sprint(err), field+c.says) && !strings.Contains(fmt.Sprint(err), "secret"),
				"%s: %v, want %v with %q", name, err, c.kind, field+c.says)
		}
	}
	err := (&Template{}).CheckSpec(driver.ServerSpec{Image: driver.Image{Source: url, Checksum: checksum, Kernel: &driver.Kernel{Source: "/vmlinuz"}}})
	assert.True(t, errors.Is(err, driver.ErrUnsupported) && strings.Contains(fmt.Sprint(err), "spec.image.kernel"), "the kernel of a URL: %v", err)
}

// TestDescribedImages checks what a machine gets of an image: a file of the pod's image volume, or the
// URL, with no volume.
func TestDescribedImages(t *testing.T) {
	t.Parallel()
	const checksum = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	for source, want := range map[string]struct {
		images int // volumes
		root   string
		volume string
	}{
		"oci://registry.example/debian:12":      {2, "/image/disk", "/images/data/disk"},
		"https://images.example/debian-12.qcow": {0, "https://images.example/debian-12.qcow", "https://images.example/debian-12.qcow"},
	} {
		i := driver.Image{Source: source, Checksum: checksum}
		template, spec := &Template{ImageMaxBytes: 1 << 30}, driver.ServerSpec{Image: i, RootDiskBytes: 1, Volumes: []driver.Volume{{Name: "data", SizeBytes: 1, Image: &i}}}
		assert.ReportError(t, template.CheckSpec(spec))
		p, err := template.NewPod(spec, Run{Nonce: "nonce"})
		assert.NoError(t, err)
		isImage := func(v corev1.Volume) bool { return v.Image != nil }
		mounts := slices.DeleteFunc(slices.Clone(p.Spec.Containers[0].VolumeMounts), func(m corev1.VolumeMount) bool { return !strings.HasPrefix(m.Name, "image") })
		volumes := slices.DeleteFunc(slices.Clone(p.Spec.Volumes), func(v corev1.Volume) bool { return !isImage(v) })
		assert.True(t, len(volumes) == want.images && len(mounts) == want.images, "%s: the pod has the volumes %v and the mounts %v", source, volumes, mounts)
		d := template.newDescription(spec, Run{})
		got := d.RootDisk.Disk
		assert.True(t, got.Image == want.root && got.Checksum == checksum, "%s: the root disk is %+v", source, got)
		if got := d.Volumes[0].Disk; got.Image != want.volume || got.Checksum != checksum || d.ImageMaxBytes != 1<<30 {
			t.Errorf("%s: the volume is %+v, and images have %d bytes", source, got, d.ImageMaxBytes)
		}
		changed := spec
		changed.Image.Checksum = strings.Replace(checksum, "0", "1", 1)
		pending := PendingFields(template.Settings(spec, Digests{}), template.Settings(changed, Digests{}))
		assert.True(t, slices.Equal(pending, []string{"image"}), "after another checksum, these wait for a restart: %v", pending)
	}
}

// TestImageDigest checks that the kubelet's report precedes what the pod names.
func TestImageDigest(t *testing.T) {
	t.Parallel()
	p, err := (&Template{}).NewPod(driver.ServerSpec{Image: driver.Image{Source: "oci://registry.example/debian:12"}}, Run{Nonce: "nonce"})
	assert.NoError(t, err)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: ContainerName, ImageID: "registry.example/drover-machine@sha256:1"}}
	assert.Equal(t, "by a tag, the digest", ImageDigest(p), "")
	p.Status.ContainerStatuses[0].VolumeMounts = []corev1.VolumeMountStatus{{
		Name: "image", VolumeStatus: &corev1.VolumeStatus{Image: &corev1.ImageVolumeStatus{ImageRef: "registry.example/debian@sha256:2"}},
	}}
	assert.Equal(t, "the kubelet's digest", ImageDigest(p), "sha256:2")
}

// TestSameImageOfTheWeb checks that the checksum names an image of a web server, and its URL does where the
// checksum of the disk was not recorded.
func TestSameImageOfTheWeb(t *testing.T) {
	t.Parallel()
	const url, sum = "https://images.example/debian.qcow2", "sha256:a"
	for name, c := range map[string]struct {
		source, checksum, recorded string
		want                       bool
	}{
		"the same":                         {url, sum, sum, true},
		"a mirror":                         {"https://mirror.example/debian.qcow2", sum, sum, true},
		"another checksum":                 {url, "sha256:b", sum, false},
		"not recorded":                     {url, sum, "", true},
		"not recorded, and of another URL": {"https://mirror.example/debian.qcow2", sum, "", false},
	} {
		from := driver.ResolvedImage{Source: url, Digest: c.recorded}
		assert.Equal(t, name, isSameImage(parseImage(driver.Image{Source: c.source, Checksum: c.checksum}), from), c.want)
	}
}

// TestLongestImage checks that a pod has the image that it was made from as long as a VirtualMachine may name it:
// the API counts characters.
func TestLongestImage(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		length int
		want   bool
	}{"as long as is allowed": {maxSource, true}, "longer": {maxSource + 1, false}} {
		source := "https://registry.example/"
		source += strings.Repeat("ä", c.length-len(source))
		kept, err := json.Marshal(Settings{Image: source})
		assert.NoError(t, err)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{AnnotationSettings: string(kept)}}}
		assert.Equal(t, name+": the pod has the image", ReadSettings(p).Image == source, c.want)
	}
}

// TestImageLimit checks that the description of a disk without a size limits its image to the room of the volume.
func TestImageLimit(t *testing.T) {
	t.Parallel()
	i := driver.Image{Source: "oci://registry.example/debian:12"}
	run := Run{Disks: map[string]DiskSettings{RootDisk: {RoomBytes: 10 << 30}, "data": {RoomBytes: 10 << 30}}}
	for name, c := range map[string]struct {
		bytes int64
		want  int64
	}{"a size": {1 << 30, 0}, "no size": {0, DiskIn(10 << 30)}} {
		d := (&Template{}).newDescription(driver.ServerSpec{Image: i, RootDiskBytes: c.bytes, Volumes: []driver.Volume{{Name: "data", SizeBytes: c.bytes, Image: &i}}}, run)
		for _, got := range []int64{d.RootDisk.MaxBytes, d.Volumes[0].MaxBytes} {
			assert.True(t, got == c.want, "%s: the largest image has %d bytes, want %d", name, got, c.want)
		}
	}
	room := DiskIn(10 << 30)
	claim := ClaimSize(room)
	assert.True(t, claim.Value() <= 10<<30, "a disk of %d bytes does not fit", room)
}
