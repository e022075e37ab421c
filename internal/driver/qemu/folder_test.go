// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/vmtest"
)

// TestBrokenRecord : a server whose record cannot be read is shown, and whether it
// runs. Nobody touches it, and the others go on.
func TestBrokenRecord(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, other := e.spec(), e.spec()
	reach(t, d, spec, driver.StateRunning)
	path := d.home(spec.UID).file(recordFile)
	content, err := os.ReadFile(path)
	must(t, err)
	for name, broken := range map[string]string{"nonsense": "{", "empty": "", "no one's": "{}"} {
		must(t, os.WriteFile(path, []byte(broken), 0o600))
		wantBroken(t, d, spec, name, driver.StateRunning)
		wantBroken(t, e.openAs(t, "cluster-2", e.dir), spec, name, driver.StateRunning)
		other.Power = driver.PowerOn
		reach(t, d, other, driver.StateRunning)
		gone(t, d, other)
	}
	must(t, os.Remove(path))
	wantBroken(t, d, spec, "none", driver.StateRunning)
	must(t, d.home(spec.UID).kill(t.Context(), spec.UID))
	wantBroken(t, d, spec, "none and off", driver.StateStopped)
	must(t, os.WriteFile(path, content, 0o600))
	if end := ended(t, d, spec.UID); end.Reason != "Killed" {
		t.Errorf("mended, it ended with %+v", end)
	}
	gone(t, d, spec)
	leavesNothing(t, d)
}

// wantBroken : it is listed, with what is wrong, and every call refuses.
func wantBroken(t *testing.T, d *Driver, spec driver.ServerSpec, what string, state driver.State) {
	t.Helper()
	servers, err := d.List(t.Context())
	must(t, err)
	if len(servers) != 1 || servers[0].UID != spec.UID || servers[0].ID != "" || servers[0].State != state {
		t.Fatalf("%s: List tells of %+v", what, servers)
	}
	wantError(t, driver.Errorf(driver.ErrRetry, "%w", servers[0].Err), driver.ErrRetry, "mend", d.home(spec.UID).path)
	if _, err := d.Usage(t.Context(), spec.UID); err != nil {
		t.Errorf("%s: Usage says %v", what, err)
	}
	_, err = d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrRetry, "mend")
	for _, retain := range []bool{false, true} {
		wantError(t, d.Delete(t.Context(), spec.Target, retain), driver.ErrRetry, "mend")
	}
	if on, err := d.home(spec.UID).running(); on != (state == driver.StateRunning) || err != nil {
		t.Errorf("%s: it runs: %v, %v", what, on, err)
	}
}

// TestBrokenEnd : what a power cut leaves of an end says that there was one.
func TestBrokenEnd(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	s := reach(t, d, spec, driver.StateRunning)
	e.tell(t, s, "x")
	if end := ended(t, d, spec.UID); end.Reason != "Completed" {
		t.Errorf("it ended with %+v", end)
	}
	ends, err := filepath.Glob(d.dir.Path(endsDir, "*"))
	if err != nil || len(ends) != 1 {
		t.Fatalf("the ends are %q, %v", ends, err)
	}
	for _, broken := range []string{"", "{", "{}", "null"} {
		must(t, os.WriteFile(ends[0], []byte(broken), 0o600))
		end := ended(t, d, spec.UID)
		if again := ended(t, d, spec.UID); *again != *end || end.Code != codeKilled || end.Reason != "Killed" || end.At.IsZero() {
			t.Errorf("%q: it ended with %+v, and then with %+v", broken, end, again)
		}
	}
	spec.Power = driver.PowerOff
	reach(t, d, spec, driver.StateStopped)
	gone(t, d, spec)
}

// TestReleaseHalfDone : a server that cannot be put aside is not gone.
func TestReleaseHalfDone(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Power = driver.PowerOff
	s := reach(t, d, spec, driver.StateStopped)
	inTheWay := d.retainedPath(spec.UID, s.ID)
	must(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	for range 2 { // the first marks it, the second finds it marked
		wantError(t, d.Delete(t.Context(), spec.Target, true), driver.ErrRetry, "aside")
	}
	_, err := d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrRetry, "aside")
	must(t, os.RemoveAll(inTheWay))
	wantError(t, d.Delete(t.Context(), spec.Target, true), driver.ErrNotFound)
	if there, err := (home{d.dir, inTheWay}).exists(); !there {
		t.Errorf("it is not among the released: %v", err)
	}
}

// TestStrayBehindALink : the machine is found by a path that is not the
// one that the driver was given.
func TestStrayBehindALink(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	must(t, os.Mkdir(e.dir+".real", 0o700))
	must(t, os.Symlink(e.dir+".real", e.dir))
	d := e.open(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.home(spec.UID)
	pid := h.pid(spec.UID)
	must(t, os.RemoveAll(h.path))
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
	vmtest.Eventually(t, patience, "the machine ends", func() error {
		if hasUUID(pid, spec.UID) {
			return errors.New("it runs")
		}
		return nil
	})
}
