// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestJournal checks that the journal has what leaders did, each entry with its epoch,
// and which callers the fence refused.
func TestJournal(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	path := filepath.Join(t.TempDir(), "journal")
	open := func() driver.Driver {
		d, err := journal.Wrap(e.open(t), path, "cluster-1", clock.RealClock{}, logr.Discard())
		assert.NoError(t, err)
		return d
	}
	d := open()
	spec := e.spec()
	spec.Epoch = 5
	reach(t, d, spec, driver.StateRunning)
	reach(t, open(), spec, driver.StateRunning) // nothing to do
	next := spec
	next.Epoch = 6
	next.Power = driver.PowerPaused
	reach(t, open(), next, driver.StatePaused)
	refuses(t, d, spec, driver.ErrFenced)
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrFenced)
	assert.NoError(t, d.Delete(t.Context(), next.Target, false))
	want := []string{"create 5", "start 5", "pause 6", "refused 5", "refused 5", "delete 6"}
	if got := journalEntries(t, path); !slices.Equal(got, want) {
		t.Errorf("the journal has %q, want %q", got, want)
	}
}

func journalEntries(t *testing.T, path string) []string {
	t.Helper()
	content := framework.ReadFile(t, path)
	var all []string
	for line := range strings.Lines(content) {
		var e journal.Entry
		assert.NoError(t, json.Unmarshal([]byte(line), &e))
		if e.PID != os.Getpid() || e.Cluster != "cluster-1" || e.UID == "" || e.At.IsZero() {
			t.Errorf("an entry is %+v", e)
		}
		all = append(all, fmt.Sprintf("%s %d", e.Action, e.Epoch))
	}
	return all
}
