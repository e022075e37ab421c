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
	"reflect"
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
	var last *fake.Sketch
	for _, e := range entries {
		if e.UID != "one" || e.Cluster != "c" || e.PID != os.Getpid() || e.At.IsZero() {
			t.Errorf("an entry is %+v", e)
		}
		if e.Deed == fake.DeedRefused {
			continue
		}
		if !reflect.DeepEqual(e.Had, last) {
			t.Errorf("%s found %+v, and %+v was left", e.Deed, e.Had, last)
		}
		last = e.Has
	}
	created, stopped := entries[0].Has, entries[1].Has
	if created.ID == "" || created.State != driver.StateRunning || stopped.State != driver.StateStopped || stopped.Run != created.Run || last != nil {
		t.Errorf("created as %+v, stopped as %+v, and in the end %+v", created, stopped, last)
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
