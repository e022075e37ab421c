// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// publishes returns the options of a driver in whose catalogue house/1 is a compressed image of a web server
// by TLS, which counts what it is asked for.
func (e *engine) publishes(t *testing.T) (o Options, digest string, asked *atomic.Int32) {
	t.Helper()
	var sent bytes.Buffer
	w := gzip.NewWriter(&sent)
	_, err := w.Write([]byte(framework.ReadFile(t, e.plain)))
	assert.NoError(t, errors.Join(err, w.Close()))
	asked = &atomic.Int32{}
	web := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/SHA512SUMS" {
			_, _ = fmt.Fprintf(w, "%x  house.img.gz\n", sha512.Sum512(sent.Bytes()))
			return
		}
		_, _ = w.Write(sent.Bytes())
	}))
	t.Cleanup(web.Close)
	o = e.options()
	o.Fetch.Catalogue = filepath.Join(t.TempDir(), "images.yaml")
	assert.NoError(t, os.WriteFile(o.Fetch.Catalogue, fmt.Appendf(nil, `images:
- name: house/1
  architecture: amd64
  url: %[1]s/house.img.gz
  checksums: {url: %[1]s/SHA512SUMS, algorithm: sha512, format: coreutils}
  user: house
  minDisk: 2Mi
`, web.URL), 0o600))
	return o, checksumOfContent(sent.Bytes()), asked
}

// TestCloudImage checks that a machine boots from an image by its name, that its digest is reported, and
// that the machine keeps its disk when the name is not in the catalogue any more.
func TestCloudImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o, digest, asked := e.publishes(t)
	d := openWith(t, o)
	spec := e.spec()
	spec.Image = driver.Image{Source: "cloud://house/1"}
	boots(t, d, spec, "drover guest 1 A")
	assert.Equal(t, "its image", listed(t, d, spec).ImageID, digest)
	o.Fetch.Catalogue = ""
	d = openWith(t, o)
	restart(t, d, spec, "drover guest 2 A")
	spec.Image.Checksum = digest
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Refused == nil && len(s.Pending) == 0, "with the checksum pending are %v, refused is %+v", s.Pending, s.Refused)
	spec.Image = driver.Image{Source: "cloud://debian/13"}
	wantRefused(t, reach(t, d, spec, driver.StateRunning), "spec.image is cloud://debian/13", "stands on cloud://house/1 with the checksum "+digest)
	n := asked.Load()
	assert.True(t, n == 2, "the publisher was asked %d times, want for the checksum and the image", n)
}

// TestCloudImageIsRefused checks that the catalogue rules specs out before anything is fetched, for root disks,
// volumes and the default image.
func TestCloudImageIsRefused(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o, _, asked := e.publishes(t)
	d := openWith(t, o)
	house := driver.Image{Source: "cloud://house/1"}
	for says, change := range map[string]func(*driver.ServerSpec){
		`spec.image.source is "cloud://house/2": there is no image of that name: the names are almalinux/9, `: func(s *driver.ServerSpec) { s.Image.Source = "cloud://house/2" },
		"spec.resource.rootDisk is 1Mi: the image cloud://house/1 needs 2Mi":                                  func(s *driver.ServerSpec) { s.Image, s.RootDiskBytes = house, 1<<20 },
		"image.checksum is \"sha512:0\": it must be sha256: and 64 digits":                                    func(s *driver.ServerSpec) { s.Image = driver.Image{Source: house.Source, Checksum: "sha512:0"} },
		"spec.volumes[0].size (data) is 1Mi: the image cloud://house/1 needs 2Mi": func(s *driver.ServerSpec) {
			s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &house}}
		},
		`spec.volumes[0].source.image.source is "cloud://x": there is no image of that name`: func(s *driver.ServerSpec) {
			s.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: "cloud://x"}}}
		},
	} {
		spec := e.spec()
		change(&spec)
		refuses(t, d, spec, driver.ErrInvalid, says)
	}
	o.Image = house.Source
	d = openWith(t, o)
	spec := e.spec()
	spec.Image, spec.RootDiskBytes = driver.Image{}, 1<<20
	refuses(t, d, spec, driver.ErrInvalid, "spec.resource.rootDisk is 1Mi: the image cloud://house/1 needs 2Mi")
	leavesNothing(t, d)
	n := asked.Load()
	assert.True(t, n == 0, "the publisher was asked %d times", n)
	o.Fetch.Catalogue = e.plain
	assert.ErrorSays(t, "a file that is not a catalogue", assert.ErrorOf(New(o)), "--image-catalogue: "+e.plain+": ")
}
