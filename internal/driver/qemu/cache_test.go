// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
)

// TestUncheckedImage checks that an image of a web server needs a checksum unless the
// flag says otherwise. A machine made of one without a checksum keeps running without the
// flag.
func TestUncheckedImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	strict := e.open(t)
	lax := e.openUnchecked(t)
	web := e.web(t)
	spec := e.spec()
	spec.Image.Source = web + "/boot-A0.img"
	_, err := strict.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrInvalid, "image.checksum is empty", "--qemu-unchecked-images")
	leavesNothing(t, strict)

	boots(t, lax, spec, "drover guest 1 A")
	off := spec
	off.Power = driver.PowerOff
	reach(t, strict, off, driver.StateStopped)
	reach(t, strict, spec, driver.StateRunning)
	changed := spec
	changed.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: web + "/boot-B0.img"}}}
	_, err = strict.Ensure(t.Context(), changed)
	wantError(t, err, driver.ErrInvalid, "volumes[0].source.image.checksum is empty")
	gone(t, strict, spec)
}

// TestCache checks that an image stays while any disk stands on it, including that of a
// machine which is off, released or another cluster's.
func TestCache(t *testing.T) {
	t.Parallel()
	if _, err := OpenCache(t.TempDir(), clock.RealClock{}); err == nil || !strings.Contains(err.Error(), "is no folder of the qemu driver") {
		t.Errorf("got the error %v", err)
	}
	e := newEngine(t)
	o := e.options()
	o.UncheckedImages = true
	d := openWith(t, o)
	o.ClusterID = "cluster-2"
	other := openWith(t, o)
	web := e.web(t)
	specs := map[string]driver.ServerSpec{}
	for name, image := range map[string]string{"root": "/boot-A0.img", "volume": "/boot-B0.img", "theirs": "/boot-S1.img"} {
		spec := e.spec()
		spec.Name, spec.Power = name, driver.PowerOff
		spec.Image.Source = web + image
		if name == "volume" {
			spec.Image.Source = e.plain
			spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: web + image}}}
			spec.Power = driver.PowerOn
		}
		specs[name] = spec
	}
	reach(t, d, specs["root"], driver.StateStopped)
	reach(t, d, specs["volume"], driver.StateRunning)
	reach(t, other, specs["theirs"], driver.StateStopped)
	must(t, d.Delete(t.Context(), specs["root"].Target, true))

	c, err := OpenCache(e.dir, clock.RealClock{})
	must(t, err)
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume", "/boot-S1.img default/theirs")
	if removed, err := c.Prune(t.Context()); err != nil || len(removed) != 0 {
		t.Errorf("it removed %+v, %v", removed, err)
	}
	gone(t, other, specs["theirs"])
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume", "/boot-S1.img")
	if removed, err := c.Prune(t.Context()); err != nil || len(removed) != 1 || removed[0].Sources[0] != web+"/boot-S1.img" {
		t.Errorf("it removed %+v, %v", removed, err)
	}
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume")

	record := d.instanceOf(specs["volume"].UID).File(recordFile)
	content, err := os.ReadFile(record)
	must(t, err)
	must(t, os.WriteFile(record, []byte("{"), 0o600))
	if _, err := c.Prune(t.Context()); err == nil || !strings.Contains(err.Error(), "repair "+record) {
		t.Errorf("beside a server that cannot be read: %v", err)
	}
	must(t, os.WriteFile(record, content, 0o600))
	specs["volume"] = withoutPower(specs["volume"])
	reach(t, d, specs["volume"], driver.StateStopped)
	gone(t, d, specs["volume"])
}

// TestCacheMakesNothing checks that root may look at images where another user runs
// machines, and that there may be no images yet.
func TestCacheMakesNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.open(t)
	lock := filepath.Join(e.dir, cacheDir, "lock")
	if _, err := os.Stat(lock); err != nil {
		t.Errorf("the driver makes no lock: %v", err)
	}
	for _, missing := range []string{lock, filepath.Dir(lock), filepath.Join(e.dir, notificationsDir)} {
		must(t, os.Remove(missing))
		before := tree(t, e.dir)
		c, err := OpenCache(e.dir, clock.RealClock{})
		must(t, err)
		wantUsers(t, c)
		if removed, err := c.Prune(t.Context()); err != nil || len(removed) != 0 {
			t.Errorf("it removed %+v, %v", removed, err)
		}
		if after := tree(t, e.dir); !slices.Equal(after, before) {
			t.Errorf("there was %q, and is %q", before, after)
		}
	}
}

// tree returns all that is below a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	must(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}

func withoutPower(spec driver.ServerSpec) driver.ServerSpec {
	spec.Power, spec.StopBy = driver.PowerOff, time.Now()
	return spec
}

// wantUsers compares the sources' paths and the users of each.
func wantUsers(t *testing.T, c *Cache, want ...string) {
	t.Helper()
	images, err := c.List()
	must(t, err)
	var got []string
	for _, i := range images {
		if len(i.Sources) != 1 {
			t.Fatalf("the sources are %q", i.Sources)
		}
		path := i.Sources[0][strings.LastIndex(i.Sources[0], "/"):]
		got = append(got, strings.Join(append([]string{path}, i.UsedBy...), " "))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the cache has %q, want %q", got, want)
	}
}
