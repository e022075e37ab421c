// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// TestJournal : it has what leaders did, each with its epoch, and whom the fence
// refused. What cannot be written down is not done.
func TestJournal(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.Journal = filepath.Join(t.TempDir(), "journal")
	d := openWith(t, o)
	spec := e.spec()
	spec.Epoch = 5
	reach(t, d, spec, driver.StateRunning)
	reach(t, openWith(t, o), spec, driver.StateRunning) // nothing to do
	next := spec
	next.Epoch = 6
	next.Power = driver.PowerPaused
	reach(t, openWith(t, o), next, driver.StatePaused)
	_, err := d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrFenced)
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrFenced)
	must(t, d.Delete(t.Context(), next.Target, false))
	want := []string{"create 5", "start 5", "pause 6", "refused 5", "refused 5", "delete 6"}
	if got := deeds(t, o.Journal); !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}

	must(t, d.journal.file.Close())
	_, err = d.Ensure(t.Context(), next)
	wantError(t, err, driver.ErrRetry, "journal")
	leavesNothing(t, d)
}

// TestJournalFull : a journal that has no room keeps from all but deleting, which
// makes some.
func TestJournalFull(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	spec, off := e.spec(), e.spec()
	off.Power = driver.PowerOff
	reach(t, e.open(t), spec, driver.StateRunning)
	reach(t, e.open(t), off, driver.StateStopped)
	o := e.options()
	o.Journal = "/dev/full"
	d := openWith(t, o)
	_, err := d.Ensure(t.Context(), e.spec())
	wantError(t, err, driver.ErrRetry, "journal", "no space left")
	wantError(t, d.Delete(t.Context(), spec.Target, true), driver.ErrRetry, "journal", "no space left")
	must(t, d.Delete(t.Context(), spec.Target, false))
	must(t, d.Delete(t.Context(), off.Target, false))
	leavesNothing(t, d)
}

func deeds(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	var all []string
	for line := range bytes.Lines(content) {
		var e Entry
		must(t, json.Unmarshal(line, &e))
		if e.PID != os.Getpid() || e.Cluster != "cluster-1" || e.UID == "" || e.At.IsZero() {
			t.Errorf("an entry is %+v", e)
		}
		all = append(all, fmt.Sprintf("%s %d", e.Deed, e.Epoch))
	}
	return all
}
