// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/history"
)

// TestCheckClaims checks that a status that was Ready too early is found, also one of a second
// VirtualMachine of its name.
func TestCheckClaims(t *testing.T) {
	ready := func(uid types.UID, at time.Time) *api.VirtualMachine {
		vm := &api.VirtualMachine{ObjectMeta: metav1.ObjectMeta{Name: "vm-1", UID: uid}}
		vm.Status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
		return vm
	}
	created := time.Date(2026, 1, 1, 12, 0, 0, 900e6, time.UTC)
	seen := Observed{Created: map[string]time.Time{"first": created}}
	for name, test := range map[string]struct {
		vm   *api.VirtualMachine
		want int
	}{
		"in the second of the creation": {ready("first", created.Truncate(time.Second)), 0},
		"before the creation":           {ready("first", created.Add(-2*time.Second)), 1},
		"of a UID without a server":     {ready("second", created.Add(time.Minute)), 1},
	} {
		if got := checkClaims([]*api.VirtualMachine{test.vm}, seen); len(got) != test.want {
			t.Errorf("%s: it is %v, want %d", name, got, test.want)
		}
	}
}

// TestForeignFiles checks that a change and a removal of what is not Drover's are found.
func TestForeignFiles(t *testing.T) {
	for name, files := range map[string]foreignFiles{"fake": foreignServers, "qemu": foreignMachines} {
		for file := range files {
			dir := t.TempDir()
			assert.NoError(t, files.write(dir))
			if got := files.check(dir); len(got) > 0 {
				t.Errorf("%s: untouched files are %v", name, got)
			}
			assert.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("changed"), 0o600))
			if got := files.check(dir); len(got) != 1 {
				t.Errorf("%s: after a change of %s they are %v", name, file, got)
			}
			assert.NoError(t, os.Remove(filepath.Join(dir, file)))
			if got := files.check(dir); len(got) != 1 {
				t.Errorf("%s: after the removal of %s they are %v", name, file, got)
			}
		}
	}
}

// TestWithSnapshots checks that entries of a version that did not record servers are judged as
// others are.
func TestWithSnapshots(t *testing.T) {
	const uid = types.UID("uid-1")
	id := &journal.Snapshot{ID: "server-1"}
	ended := []history.Process{{PID: 1, To: time.Unix(1, 500e6)}} // after the first two entries
	entries := func(actions ...journal.Action) (all []journal.Entry) {
		for n, action := range actions {
			all = append(all, journal.Entry{PID: 1, UID: uid, Action: action, At: time.Unix(int64(n), 0)})
		}
		return all
	}
	for name, test := range map[string]struct {
		entries []journal.Entry
		final   *journal.Snapshot
		want    Effects
		broken  int
	}{
		"created":          {entries("create", "start"), id, Effects{Creates: 1}, 0},
		"created and lost": {entries("create", "start"), nil, Effects{Creates: 1}, 1},
		"created again":    {entries("create", "delete", "create"), id, Effects{Creates: 2, Deletes: 1}, 1},
		"deleted":          {entries("create", "start", "delete"), nil, Effects{Creates: 1, Deletes: 1}, 0},
		"released":         {entries("create", "release"), nil, Effects{Creates: 1, Releases: 1}, 0},
		"creation cut off": {entries("create", "create", "start"), id, Effects{Creates: 1}, 0},
		"deletion cut off": {entries("create", "delete", "delete"), nil, Effects{Creates: 1, Deletes: 1}, 0},
		"of a new version": {[]journal.Entry{{PID: 1, UID: uid, Action: journal.ActionCreate, After: id}}, id, Effects{Creates: 1}, 0},
		"cut off in a new version": {
			[]journal.Entry{{PID: 1, UID: uid, Action: journal.ActionCreate, After: &journal.Snapshot{ID: "server-2"}}, {PID: 1, UID: uid, Action: journal.ActionCreate}},
			id,
			Effects{Creates: 1},
			0,
		},
		"another one there": {[]journal.Entry{{PID: 1, UID: uid, Action: journal.ActionCreate, After: id}}, &journal.Snapshot{ID: "server-2"}, Effects{Creates: 1}, 1},
	} {
		s := history.TraceServer(uid, withSnapshots(test.entries, test.final), test.final, ended)
		if got := addEffects(Effects{}, s); got != test.want {
			t.Errorf("%s: the effects are %+v, want %+v", name, got, test.want)
		}
		if broken := slices.Concat(s.Violations, s.CheckCreation()); len(broken) != test.broken {
			t.Errorf("%s: it broke %v, want %d", name, broken, test.broken)
		}
	}
}
