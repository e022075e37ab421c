// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func readJournal(t *testing.T, path string) []journal.Entry {
	t.Helper()
	content := framework.ReadFile(t, path)
	var entries []journal.Entry
	for line := range strings.Lines(content) {
		if len(line) == 1 { // two drivers wrote at the same time
			continue
		}
		var e journal.Entry
		err := json.Unmarshal([]byte(line), &e)
		assert.Require(t, err == nil, "%s: %v", line, err)
		entries = append(entries, e)
	}
	return entries
}

func actionsOf(entries []journal.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprint(e.Epoch, " ", e.Method, " ", e.Action))
	}
	return all
}

// openJournaled wraps the fake driver with a journal.
func openJournaled(t *testing.T, o fake.Options, path string) driver.Driver {
	t.Helper()
	d, err := journal.Wrap(faketest.OpenDriver(t, o), path, o.ClusterID, clock.RealClock{}, logr.Discard())
	assert.NoError(t, err)
	return d
}

// TestJournal checks that accepted changes are recorded in order, with the state before;
// that calls without a change are not; and that refused calls are recorded as refused.
func TestJournal(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]fake.Options{
		"in memory": {ClusterID: "c"},
		"in a dir":  {ClusterID: "c", Dir: t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "journal")
			runCalls(t, openJournaled(t, o, path))
			entries := readJournal(t, path)
			want := []string{"5 Ensure create", "6 Ensure change", "5 Delete refused", "6 Delete delete", "6 Ensure create", "6 Delete release"}
			got := actionsOf(entries)
			assert.Require(t, slices.Equal(got, want), "the journal has %q, want %q", got, want)
			checkEntries(t, entries)
		})
	}
}

func checkEntries(t *testing.T, entries []journal.Entry) {
	t.Helper()
	var last *journal.Snapshot
	for _, e := range entries {
		assert.True(t, e.UID == "one" && e.Cluster == "c" && e.PID == os.Getpid() && !e.At.IsZero(), "an entry is %+v", e)
		if e.Action == journal.ActionRefused {
			continue
		}
		assert.True(t, reflect.DeepEqual(e.Before, last), "%s found %+v, want %+v as the entry before left it", e.Action, e.Before, last)
		last = e.After
	}
	created, stopped := entries[0].After, entries[1].After
	assert.True(t, created.ID != "" && created.State == driver.StateRunning && stopped.State == driver.StateStopped && stopped.Run == created.Run && last == nil,
		"created as %+v, stopped as %+v, and in the end %+v", created, stopped, last)
}

func runCalls(t *testing.T, d driver.Driver) {
	t.Helper()
	stop := faketest.NewSpec(t)
	stop.Target, stop.Power = driver.Target{UID: "one", Epoch: 6}, driver.PowerOff
	assert.NoError(t, errors.Join(faketest.EnsureWithEpoch(t, d, "one", 5), faketest.EnsureWithEpoch(t, d, "one", 5)))
	_, stopped := d.Ensure(t.Context(), stop)
	fenced := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 5}, false)
	deleted := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, false)
	gone := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, false)
	again := faketest.EnsureWithEpoch(t, d, "one", 6)
	released := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, true)
	err := errors.Join(stopped, deleted, again, released)
	assert.Require(t, err == nil && errors.Is(fenced, driver.ErrFenced) && errors.Is(gone, driver.ErrNotFound), "got errors %v, %v, %v", err, fenced, gone)
}

// TestSharedJournal checks that lines of several drivers do not mix.
func TestSharedJournal(t *testing.T) {
	t.Parallel()
	o := fake.Options{ClusterID: "c", Dir: t.TempDir()}
	path := filepath.Join(t.TempDir(), "journal")
	const drivers, servers = 4, 25
	done := make(chan error)
	for n := range drivers {
		d := openJournaled(t, o, path)
		go func() {
			var err error
			for m := range servers {
				err = errors.Join(err, faketest.EnsureWithEpoch(t, d, types.UID(fmt.Sprintf("uid-%d-%d", n, m)), 1))
			}
			done <- err
		}()
	}
	for range drivers {
		assert.ReportError(t, <-done)
	}
	n := len(readJournal(t, path))
	assert.True(t, n == drivers*servers, "%d entries, want %d", n, drivers*servers)
}

// TestLostEntry checks that a change that cannot be recorded is made anyway, and logged.
func TestLostEntry(t *testing.T) {
	t.Parallel()
	var lost []string
	log := funcr.New(func(_, args string) { lost = append(lost, args) }, funcr.Options{})
	d, err := journal.Wrap(faketest.OpenDriver(t, fake.Options{ClusterID: "c"}), "/dev/full", "c", clock.RealClock{}, log)
	assert.NoError(t, err)
	runCalls(t, d)
	assert.True(t, len(lost) == 6 && strings.Contains(lost[0], journal.EntryLost) && strings.Contains(lost[0], `"deed"="create"`), "logged: %q", lost)
}

// TestWrapRejectsPipe checks that a file that could block a change is refused.
func TestWrapRejectsPipe(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	assert.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for name, path := range map[string]string{"a folder": t.TempDir(), "a pipe": pipe} {
		_, err := journal.Wrap(faketest.OpenDriver(t, fake.Options{ClusterID: "c"}), path, "c", clock.RealClock{}, logr.Discard())
		assert.True(t, err != nil, "Wrap accepted %s", name)
	}
}

// TestPartialLine checks that an entry after an incomplete line begins on a new
// line.
func TestPartialLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	assert.NoError(t, os.WriteFile(path, []byte(`{"hal`), 0o600))
	d := openJournaled(t, fake.Options{ClusterID: "c"}, path)
	assert.NoError(t, errors.Join(faketest.EnsureWithEpoch(t, d, "one", 1), faketest.EnsureWithEpoch(t, d, "two", 1)))
	content := framework.ReadFile(t, path)
	lines := strings.Split(content, "\n")
	assert.True(t, len(lines) == 4 && lines[0] == `{"hal` && strings.Contains(lines[1], `"one"`) && strings.Contains(lines[2], `"two"`) && lines[3] == "",
		"it has %q", lines)
}
