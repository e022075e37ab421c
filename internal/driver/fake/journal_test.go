// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
)

func readJournal(t *testing.T, path string) []fake.Entry {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var entries []fake.Entry
	for line := range bytes.Lines(content) {
		var e fake.Entry
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		entries = append(entries, e)
	}
	return entries
}

func deeds(entries []fake.Entry) []string {
	var all []string
	for _, e := range entries {
		all = append(all, fmt.Sprint(e.Epoch, " ", e.Method, " ", e.Deed))
	}
	return all
}

// TestJournal : what is accepted stands there, in order, with what was there
// before; what changes nothing does not; what is refused does as such.
func TestJournal(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]fake.Options{
		"in memory": {ClusterID: "c"},
		"in a dir":  {ClusterID: "c", Dir: t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.Journal = filepath.Join(t.TempDir(), "journal")
			d := faketest.Open(t, o)
			act(t, d)
			entries := readJournal(t, o.Journal)
			want := []string{"5 Ensure create", "6 Ensure change", "5 Delete refused", "6 Delete delete", "6 Ensure create", "6 Delete release"}
			if got := deeds(entries); !slices.Equal(got, want) {
				t.Fatalf("the journal has %q, want %q", got, want)
			}
			checkEntries(t, entries)
		})
	}
}

func checkEntries(t *testing.T, entries []fake.Entry) {
	t.Helper()
	for _, e := range entries {
		if e.UID != "one" || e.Cluster != "c" || e.PID != os.Getpid() || e.At.IsZero() {
			t.Errorf("an entry is %+v", e)
		}
	}
	created, changed, deleted, released := entries[0], entries[1], entries[3], entries[5]
	if created.Had != nil || created.Has.ID == "" || created.Has.State != driver.StateRunning {
		t.Errorf("the creation is told as from %+v to %+v", created.Had, created.Has)
	}
	if *changed.Had != *created.Has || changed.Has.State != driver.StateStopped || changed.Has.Run != created.Has.Run {
		t.Errorf("the stop is told as from %+v to %+v", changed.Had, changed.Has)
	}
	if *deleted.Had != *changed.Has || *released.Had != *entries[4].Has {
		t.Errorf("the ends are told as of %+v and %+v", deleted.Had, released.Had)
	}
	if deleted.Has != nil || released.Has != nil {
		t.Errorf("there is %+v and %+v after the end", deleted.Has, released.Has)
	}
}

func act(t *testing.T, d *fake.Driver) {
	t.Helper()
	stop := faketest.Spec(t)
	stop.Target, stop.Power = driver.Target{UID: "one", Epoch: 6}, driver.PowerOff
	if err := errors.Join(ensureAt(t, d, "one", 5), ensureAt(t, d, "one", 5)); err != nil {
		t.Fatal(err)
	}
	_, stopped := d.Ensure(t.Context(), stop)
	fenced := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 5}, false)
	deleted := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, false)
	gone := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, false)
	again := ensureAt(t, d, "one", 6)
	released := d.Delete(t.Context(), driver.Target{UID: "one", Epoch: 6}, true)
	if err := errors.Join(stopped, deleted, again, released); err != nil || !errors.Is(fenced, driver.ErrFenced) || !errors.Is(gone, driver.ErrNotFound) {
		t.Fatalf("got errors %v, %v, %v", err, fenced, gone)
	}
}

// TestJournalIsShared : lines of several drivers stand one after the other.
func TestJournalIsShared(t *testing.T) {
	t.Parallel()
	o := fake.Options{ClusterID: "c", Dir: t.TempDir(), Journal: filepath.Join(t.TempDir(), "journal")}
	const drivers, servers = 4, 25
	done := make(chan error)
	for n := range drivers {
		d := faketest.Open(t, o)
		go func() {
			var err error
			for m := range servers {
				err = errors.Join(err, ensureAt(t, d, types.UID(fmt.Sprintf("uid-%d-%d", n, m)), 1))
			}
			done <- err
		}()
	}
	for range drivers {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := len(readJournal(t, o.Journal)); n != drivers*servers {
		t.Errorf("%d entries, want %d", n, drivers*servers)
	}
}

// TestJournalLost : what cannot be written down is not done.
func TestJournalLost(t *testing.T) {
	t.Parallel()
	d := faketest.Open(t, fake.Options{ClusterID: "c", Journal: "/dev/full"})
	if err := ensureAt(t, d, "one", 1); !errors.Is(err, driver.ErrRetry) {
		t.Errorf("got error %v, want %v", err, driver.ErrRetry)
	}
	if servers, err := d.List(t.Context()); err != nil || len(servers) != 0 {
		t.Errorf("the engine has %v, %v: want none", servers, err)
	}
	if _, err := fake.New(fake.Options{ClusterID: "c", Journal: t.TempDir()}); err == nil {
		t.Error("a folder was taken for a journal")
	}
}
