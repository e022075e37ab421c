// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/random"
	corev1 "k8s.io/api/core/v1"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/driver/pod/podtest"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// testRegistry is a registry that a driver may ask. Requests can be made to hang.
type testRegistry struct {
	host  string
	asked atomic.Int32 // for manifests
	hangs atomic.Bool
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	r := &testRegistry{}
	r.host = framework.NewRegistry(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			if strings.Contains(request.URL.Path, "/manifests/") && request.Method != http.MethodPut {
				r.asked.Add(1)
			}
			if r.hangs.Load() {
				<-request.Context().Done()
				return
			}
			inner.ServeHTTP(w, request)
		})
	})
	return r
}

// push gives a tag new content, and returns its digest.
func (r *testRegistry) push(t *testing.T, reference string) string {
	t.Helper()
	content, err := random.Image(64, 1)
	assert.NoError(t, err)
	framework.PushImage(t, r.host+"/"+reference, content)
	digest, err := content.Digest()
	assert.NoError(t, err)
	return digest.String()
}

// allow has a driver ask the registry.
func (r *testRegistry) allow(t *testing.T, d *Driver, hosts ...string) {
	t.Helper()
	sources, err := image.NewSources(image.Policy{Hosts: hosts, PlainHTTP: []string{r.host}})
	assert.NoError(t, err)
	d.images.Resolve = sources.Resolve
}

const loopback = "127.0.0.1"

// wantImages checks what the volumes of a server's pod name their images by.
func (s *server) wantImages(t *testing.T, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, v := range s.pod(t).Spec.Volumes {
		if v.Image != nil {
			got[v.Name] = v.Image.Reference
		}
	}
	for volume, reference := range want {
		assert.Equal(t, "the volume "+volume+" has the image", got[volume], reference)
	}
}

func (s *server) restart(t *testing.T) driver.Server {
	t.Helper()
	s.turn(t, driver.PowerOff, driver.StateStopped)
	s.Power = driver.PowerOn
	return s.reach(t, driver.StateRunning)
}

// kernelOfImage has each pod of a server mount the image, of which the disk is made only once.
var kernelOfImage = &driver.Kernel{Source: "/vmlinuz"}

// TestTags checks that the tag of an image is resolved once for a server with a disk, recorded before
// there is a pod, and resolved again for another source.
func TestTags(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newRegistry(t)
	first, data := r.push(t, "disks/debian:12"), r.push(t, "disks/data:1")
	s := w.newServer(t, "web")
	r.allow(t, s.d, loopback)
	s.Image.Source, s.Image.Kernel = "oci://"+r.host+"/disks/debian:12", kernelOfImage
	s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: "oci://" + r.host + "/disks/data:1"}}}
	s.record(t)
	if got := s.recordOf(objects.KindPod).Images; len(got) != 2 || got[0] != (driver.ResolvedImage{Source: s.Image.Source, Digest: first, Unproven: true}) {
		t.Fatalf("before there is a pod, the record has the images %+v", got)
	}
	want := map[string]string{"image": r.host + "/disks/debian@" + first, "image-data": r.host + "/disks/data@" + data}
	got := s.reach(t, driver.StateRunning)
	assert.True(t, got.ImageID == first && got.Note == "", "the image is %q, with the note %q", got.ImageID, got.Note)
	s.wantImages(t, want)

	second := r.push(t, "disks/debian:12")
	s.Image.PullPolicy = driver.PullAlways // its disk was made before
	got = s.restart(t)
	assert.True(t, got.ImageID == first && len(got.Pending) == 0, "after the tag has moved, the image is %q and %v is pending", got.ImageID, got.Pending)
	delete(want, "image-data") // it was made
	s.wantImages(t, want)

	third := r.push(t, "disks/debian:13")
	s.Image.Source = "oci://" + r.host + "/disks/debian:13"
	assert.Equal(t, "with another source for its kernel, the disk has the image", s.restart(t).ImageID, first)
	s.wantImages(t, map[string]string{"image": r.host + "/disks/debian@" + third})
	s.Image.Source = "oci://" + r.host + "/disks/debian:12"
	s.restart(t)
	s.wantImages(t, map[string]string{"image": r.host + "/disks/debian@" + second})
	s.deleteAll(t)
}

// TestTagsOfEphemeral checks that a disk that is made at each start has the latest image only with
// pullPolicy Always.
func TestTagsOfEphemeral(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newRegistry(t)
	first := r.push(t, "disks/debian:12")
	s := w.newServer(t, "web")
	r.allow(t, s.d, loopback)
	s.Ephemeral, s.Image.Source = true, "oci://"+r.host+"/disks/debian:12"
	s.reach(t, driver.StateRunning)
	second := r.push(t, "disks/debian:12")
	assert.Equal(t, "IfNotPresent: the image", s.restart(t).ImageID, first)
	s.Image.PullPolicy = driver.PullAlways
	assert.Equal(t, "Always: the image", s.restart(t).ImageID, second)
	s.Image.PullPolicy = driver.PullNever
	asked := r.asked.Load()
	if got := s.restart(t); got.ImageID != "" || got.Note != "" || r.asked.Load() != asked {
		t.Errorf("Never: the image is %q, note %q, and the registry was asked %d times", got.ImageID, got.Note, r.asked.Load()-asked)
	}
	s.wantImages(t, map[string]string{"image": r.host + "/disks/debian:12"})
	s.deleteAll(t)
}

// TestDigestThatNodesLack checks that a server which has never run with a digest is started by the tag
// if its node has failed to by the digest, and that one which has run keeps it.
func TestDigestThatNodesLack(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newRegistry(t)
	digest := r.push(t, "disks/debian:12")
	byTag, byDigest := map[string]string{"image": r.host + "/disks/debian:12"}, map[string]string{"image": r.host + "/disks/debian@" + digest}
	begin := w.kubelet.Begin
	lack := func(digests bool) {
		w.kubelet.Lock()
		defer w.kubelet.Unlock()
		w.kubelet.Begin = func(p *corev1.Pod) (string, func() (int32, string), error) {
			if digests && objects.ImageDigest(p) != "" {
				return "", nil, errors.New("the node does not have the image")
			}
			return begin(p)
		}
	}
	fail := func(s *server) { // the pod gets a node, and no container
		s.reach(t, driver.StateStarting)
		assert.Eventually(t, "the pod has a node", func(t testing.TB) error {
			if _, err := s.ensure(t); err != nil || s.pod(t).Spec.NodeName == "" {
				return fmt.Errorf("it has none: %w", err)
			}
			return nil
		})
		s.wantImages(t, byDigest)
		s.turn(t, driver.PowerOff, driver.StateStopped)
		s.Power = driver.PowerOn
	}
	newServer := func(name string) *server {
		s := w.newServer(t, name)
		r.allow(t, s.d, loopback)
		s.Image.Source, s.Image.Kernel = "oci://"+r.host+"/disks/debian:12", kernelOfImage
		return s
	}
	has := newServer("has-run")
	has.reach(t, driver.StateRunning)
	has.turn(t, driver.PowerOff, driver.StateStopped)
	has.Power = driver.PowerOn
	lack(true)
	fail(has)
	fail(has)
	never := newServer("never-ran")
	fail(never)
	for range 2 { // the tag stays, or every second start would fail
		assert.Contains(t, "the note", never.reach(t, driver.StateRunning).Note, "no machine was started with its digest "+digest)
		never.wantImages(t, byTag)
		never.turn(t, driver.PowerOff, driver.StateStopped)
		never.Power = driver.PowerOn
	}
	lack(false)
	has.reach(t, driver.StateRunning)
	has.wantImages(t, byDigest)
	has.deleteAll(t)
	never.deleteAll(t)
}

// TestUnresolvedTags checks that nodes resolve what Drover cannot, which the server says, until Drover
// can.
func TestUnresolvedTags(t *testing.T) {
	t.Parallel()
	w, r := newWorld(t), newRegistry(t)
	digest := r.push(t, "disks/debian:12")
	pushed := r.asked.Load()
	s := w.newServer(t, "web")
	s.Image.Source, s.Image.Kernel = "oci://"+r.host+"/disks/debian:12", kernelOfImage
	wantNote := func(says string) {
		t.Helper()
		got := s.list(t)
		assert.True(t, strings.Contains(got.Note, s.Image.Source) && strings.Contains(got.Note, says) && got.ImageID == "",
			"the note is %q, want %q; the image is %q", got.Note, says, got.ImageID)
		s.wantImages(t, map[string]string{"image": strings.TrimPrefix(s.Image.Source, "oci://")})
	}
	r.allow(t, s.d)
	s.reach(t, driver.StateRunning)
	if wantNote("--image-hosts"); r.asked.Load() != pushed {
		t.Error("a host was asked that is not allowed")
	}
	r.allow(t, s.d, loopback)
	r.hangs.Store(true)
	s.restart(t)
	wantNote("did not answer in time")
	r.hangs.Store(false)
	silence := testingclock.NewFakePassiveClock(time.Now())
	s.d.images.Clock = silence
	asked := r.asked.Load()
	s.restart(t)
	if wantNote("did not answer in time"); r.asked.Load() != asked {
		t.Error("a registry was asked again at once")
	}
	silence.SetTime(silence.Now().Add(time.Hour))
	s.Image.Source = "oci://" + r.host + "/disks/missing:1"
	s.restart(t)
	wantNote("404")
	s.Image.Source = "oci://" + r.host + "/disks/debian:12"
	assert.Equal(t, "a registry that answers again leaves the note", s.restart(t).Note, "")
	s.wantImages(t, map[string]string{"image": r.host + "/disks/debian@" + digest})
	s.deleteAll(t)
}

// TestLargeImage checks that a server whose machine has found an image that is larger than its disk is refused, with
// the field, its value and the size that is needed, that no pod is made until the spec differs, and that one is then.
func TestLargeImage(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.kubelet.Set(func(k *podtest.Kubelet) { k.MakesDisks = true })
	const boot = "the image oci://registry.example/boot:1 needs "
	for name, c := range map[string]struct {
		change func(*server)
		says   string // by the machine
		want   string
		repair func(*server)
	}{
		"root": {
			func(*server) {}, `"tooLarge": {"bytes": 4194304}`, "spec.resource.rootDisk is 1Mi: " + boot + "4Mi",
			func(s *server) { s.RootDiskBytes = 4 << 20 },
		},
		"image": {
			func(*server) {}, `"tooLarge": {"bytes": 4194304}`, "spec.resource.rootDisk is 1Mi: " + boot + "4Mi",
			func(s *server) { s.Image.Source = "oci://registry.example/small:1" },
		},
		"unset": {
			func(s *server) { s.RootDiskBytes = 0 }, `"tooLarge": {"bytes": 20000000000}`, "has room for a disk of 10Gi: " + boot + "20G",
			func(s *server) { s.RootDiskBytes = 20000000000 },
		},
		"ephemeral": {
			func(s *server) { s.Ephemeral, s.StorageClassName = true, nil }, `"tooLarge": {"bytes": 4194304}`, "spec.resource.rootDisk is 1Mi: " + boot + "4Mi",
			func(s *server) { s.RootDiskBytes = 4 << 20 },
		},
		"volume": {
			func(s *server) {
				s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: "oci://registry.example/data:1"}}}
			}, `"tooLarge": {"volume": "data", "bytes": 4194304}`, "spec.volumes[data].size is 1Mi: the image oci://registry.example/data:1 needs 4Mi",
			func(s *server) { s.Volumes[0].SizeBytes = 8 << 20 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.newServer(t, name)
			c.change(s)
			s.reach(t, driver.StateStarting)
			assert.Eventually(t, "the machine ends", func(t testing.TB) error { return s.endNotStarted(t, c.says) })
			first := s.pod(t)
			for range 3 {
				assert.ErrorIs(t, "a large image", assert.ErrorOf(s.ensure(t)), driver.ErrInvalid, c.want)
			}
			p := s.pod(t)
			assert.True(t, p.UID == first.UID && p.DeletionTimestamp == nil, "another pod was made for the same spec")
			c.repair(s)
			assert.Eventually(t, "another pod is made for another spec", func(t testing.TB) error {
				_, err := s.ensure(t)
				if err == nil && s.pod(t).UID == first.UID {
					err = errors.New("it is the same")
				}
				return err
			})
		})
	}
}
