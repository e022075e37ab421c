// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// web serves the engine's images.
func (e *engine) web(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(e.images)))
	t.Cleanup(server.Close)
	return server.URL
}

func checksumOf(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return fmt.Sprintf("sha256:%x", sha256.Sum256(content))
}

// restart ends the run that is on and waits for the next, whose guest is to print
// a text.
func restart(t *testing.T, d *Driver, spec driver.ServerSpec, prints string) {
	t.Helper()
	spec.StopBy = time.Now().Add(time.Hour)
	servers, err := d.List(t.Context(), spec.UID)
	must(t, err)
	spec.EndRun = servers[0].Run
	reach(t, d, spec, driver.StateRunning)
	serial(t, d, spec, prints)
}

// TestSameImage : an image that is named in another way leaves the root disk as
// it is, and another image does not.
func TestSameImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.UncheckedImages = true
	d := openWith(t, o)
	here, mirror := e.web(t), e.web(t)
	spec := e.spec()
	spec.Image.Source = here + "/boot-A0.img"
	reach(t, d, spec, driver.StateRunning)
	serial(t, d, spec, "drover guest 1 A")
	sum := checksumOf(t, e.plain)
	for n, image := range []driver.Image{
		{Source: here + "/boot-A0.img", Checksum: sum},
		{Source: mirror + "/boot-A0.img", Checksum: sum},
		{Source: here + "/boot-A0.img"},
	} {
		spec.Image = image
		if s := reach(t, d, spec, driver.StateRunning); len(s.Pending) != 0 {
			t.Errorf("with %+v pending are %v", image, s.Pending)
		}
		restart(t, d, spec, fmt.Sprintf("drover guest %d A", n+2))
	}
	spec.Image = driver.Image{Source: mirror + "/boot-B0.img", Checksum: checksumOf(t, e.other)}
	if s := reach(t, d, spec, driver.StateRunning); !slices.Equal(s.Pending, []string{"image"}) {
		t.Errorf("with another image pending are %v", s.Pending)
	}
	restart(t, d, spec, "drover guest 1 B")
	gone(t, d, spec)
}

// TestSameFile : the two forms of a file's name are of one image.
func TestSameFile(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	serial(t, d, spec, "drover guest 1 A")
	spec.Image.Source = "file://" + e.plain
	if s := reach(t, d, spec, driver.StateRunning); len(s.Pending) != 0 {
		t.Errorf("pending are %v", s.Pending)
	}
	restart(t, d, spec, "drover guest 2 A")
	gone(t, d, spec)
}
