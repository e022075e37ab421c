// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/test/assert"
)

var errNotYet = errors.New("not yet")

// described returns what the machine of a pod reads.
func (s *server) described(t *testing.T) (d description.Machine) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(s.pod(t).Annotations[objects.AnnotationMachine]), &d))
	return d
}

// images returns the images that the server's pod mounts.
func (s *server) images(t *testing.T) (all []string) {
	t.Helper()
	for _, v := range s.pod(t).Spec.Volumes {
		if v.Image != nil {
			all = append(all, v.Image.Reference)
		}
	}
	return all
}

// TestMadeDisks checks that the pods after the first one that ran neither make the disks again nor need
// their images.
func TestMadeDisks(t *testing.T) {
	t.Parallel()
	s := newWorld(t).newServer(t, "web")
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: "oci://registry.example/data:1"}}}
	s.reach(t, driver.StateRunning)
	if d := s.described(t); d.RootDisk.MustExist || d.Volumes[0].MustExist || len(s.images(t)) != 2 {
		t.Errorf("the first pod has %+v and %+v, with images %v", d.RootDisk, d.Volumes[0], s.images(t))
	}
	s.Volumes = append(s.Volumes, driver.Volume{Name: "more", SizeBytes: 1 << 20})
	s.restart(t)
	d := s.described(t)
	if !d.RootDisk.MustExist || !d.Volumes[0].MustExist || d.Volumes[1].MustExist || d.RootDisk.Image != "" || len(s.images(t)) > 0 {
		t.Errorf("the second pod has %+v and %+v, with images %v", d.RootDisk, d.Volumes, s.images(t))
	}
	s.deleteAll(t)
}

// TestImageOfMadeDisk checks that a root disk keeps the image that it was made from, whatever the spec says,
// while a kernel comes from the one that the spec names.
func TestImageOfMadeDisk(t *testing.T) {
	t.Parallel()
	s := newWorld(t).newServer(t, "web")
	s.reach(t, driver.StateRunning)
	s.Image.Source = "oci://registry.example/boot:2"
	got := s.reach(t, driver.StateRunning)
	if got.Refused == nil || got.Refused.Reason != driver.ReasonImageImmutable || !strings.Contains(got.Refused.Message, "boot:1") || len(got.Pending) > 0 {
		t.Errorf("another image: refused is %+v, and pending %v", got.Refused, got.Pending)
	}
	s.Image.Kernel = &driver.Kernel{Source: "/vmlinuz"} // now it is for the kernel
	if got = s.reach(t, driver.StateRunning); got.Refused != nil || !slices.Equal(got.Pending, []string{"image"}) {
		t.Errorf("with a kernel: refused is %+v, and pending %v", got.Refused, got.Pending)
	}
	s.restart(t)
	if got := s.images(t); !slices.Equal(got, []string{"registry.example/boot:2"}) || !s.described(t).RootDisk.MustExist {
		t.Errorf("with a kernel the pod has the images %v", got)
	}
	s.deleteAll(t)
}

// TestDisksThatAreBeingMade checks that a machine that makes its disks is starting, also for a new leader,
// and that disks which it has not finished are made by the next pod.
func TestDisksThatAreBeingMade(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kubelet.set(func(k *kubelet) { k.makesDisks = true })
	s := w.newServer(t, "web")
	assert.Eventually(t, "its container runs", func(t testing.TB) error {
		_, err := s.ensure(t)
		if err == nil && len(s.pod(t).Status.ContainerStatuses) == 0 {
			err = errNotYet
		}
		return err
	})
	if got := s.reach(t, driver.StateStarting); !strings.Contains(got.Progress, "makes its disks") || got.ImageID != "" {
		t.Errorf("it is %+v", got)
	}
	s.d = w.open(t)
	s.reach(t, driver.StateStarting)
	w.kubelet.set(func(k *kubelet) { k.makesDisks = false })
	s.restart(t)
	if d := s.described(t); d.RootDisk.MustExist || d.RootDisk.Image == "" {
		t.Errorf("after an end during the copy, the next pod has %+v", d.RootDisk)
	}
	s.deleteAll(t)
}

// TestSpecOfAWaitingPod checks that a pod which waits for a node, or for an image, gets a changed spec.
func TestSpecOfAWaitingPod(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breaks, fixes func(*driver.ServerSpec)
	}{
		"node": {
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = map[string]string{noNode: "true"} },
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = nil },
		},
		"image": {
			func(s *driver.ServerSpec) { s.Image.Source = "oci://registry.example/absent:1" },
			func(s *driver.ServerSpec) { s.Image.Source = "oci://registry.example/boot:1" },
		},
		"node of an ephemeral server": {
			func(s *driver.ServerSpec) {
				s.Ephemeral, s.Placement.NodeSelector = true, map[string]string{noNode: "true"}
			},
			func(s *driver.ServerSpec) { s.Placement.NodeSelector = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			s := w.newServer(t, "web")
			c.breaks(&s.ServerSpec)
			s.reach(t, driver.StateStarting)
			first := s.waitUntilSettled(t, s.Placement.NodeSelector == nil)
			c.fixes(&s.ServerSpec)
			if got := s.reach(t, driver.StateRunning); got.Run == string(first) || len(got.Pending) > 0 {
				t.Errorf("it runs in pod %s, the first was %s, and %v is pending", got.Run, first, got.Pending)
			}
			s.deleteAll(t)
		})
	}
}

// waitUntilSettled waits until the pod has no gate, and a node if it can get one, and returns its UID.
func (s *server) waitUntilSettled(t *testing.T, hasNode bool) (uid types.UID) {
	t.Helper()
	assert.Eventually(t, "the pod waits", func(t testing.TB) error {
		_, err := s.ensure(t)
		var p *corev1.Pod
		if err == nil {
			p = s.pod(t)
			uid = p.UID
		}
		if err == nil && (objects.IsGated(p) || hasNode == (p.Spec.NodeName == "")) {
			err = errNotYet
		}
		return err
	})
	return uid
}
