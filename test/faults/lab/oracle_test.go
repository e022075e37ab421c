// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
)

// TestForeignFiles checks that changes and removals of foreign files are found.
func TestForeignFiles(t *testing.T) {
	for name, files := range map[string]foreignFiles{"fake": foreignServers, "qemu": foreignMachines} {
		for file := range files {
			dir := t.TempDir()
			assert.NoError(t, files.write(dir))
			got := files.check(dir)
			assert.True(t, len(got) == 0, "%s: untouched files are %v", name, got)
			assert.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte("changed"), 0o600))
			got = files.check(dir)
			assert.True(t, len(got) == 1, "%s: after a change of %s they are %v", name, file, got)
			assert.NoError(t, os.Remove(filepath.Join(dir, file)))
			got = files.check(dir)
			assert.True(t, len(got) == 1, "%s: after the removal of %s they are %v", name, file, got)
		}
	}
}

// TestForeignMachinesAreUnderstood checks that the driver can read the records of foreign machines: it
// never touches a machine with a bad record, whoever owns it.
func TestForeignMachinesAreUnderstood(t *testing.T) {
	dir := t.TempDir()
	assert.NoError(t, foreignMachines.write(dir))
	records, err := filepath.Glob(filepath.Join(dir, "*", "*", instance.RecordFile))
	assert.NoError(t, err)
	assert.True(t, len(records) == 2, "the records are %v, not 2", records)
	for _, path := range records {
		machine, err := (&instance.Host{}).InstanceAt(filepath.Dir(path)).Load()
		assert.NoError(t, err)
		assert.Equal(t, path+" is of the cluster", machine.ClusterID, "another")
	}
}

// TestAddEffects checks that finished actions are counted, and not those that a killed process only began.
func TestAddEffects(t *testing.T) {
	const uid = types.UID("uid-1")
	server := &journal.Snapshot{ID: "server-1"}
	ended := []rules.Process{{PID: 1, To: time.Unix(1, 500e6)}} // after the first two entries
	for name, test := range map[string]struct {
		actions []journal.Action
		isLeft  bool
		want    Effects
	}{
		"created":          {[]journal.Action{"create", "start"}, true, Effects{Creates: 1}},
		"created again":    {[]journal.Action{"create", "delete", "create"}, true, Effects{Creates: 2, Deletes: 1}},
		"deleted":          {[]journal.Action{"create", "start", "delete"}, false, Effects{Creates: 1, Deletes: 1}},
		"released":         {[]journal.Action{"create", "release"}, false, Effects{Creates: 1, Releases: 1}},
		"creation cut off": {[]journal.Action{"create", "create", "start"}, true, Effects{Creates: 1}},
		"deletion cut off": {[]journal.Action{"create", "delete", "delete"}, false, Effects{Creates: 1, Deletes: 1}},
	} {
		var entries []journal.Entry
		for n, action := range test.actions {
			e := journal.Entry{PID: 1, UID: uid, Action: action, At: time.Unix(int64(n), 0), Before: server, After: server}
			if action == journal.ActionCreate {
				e.Before = nil
			}
			if action == journal.ActionDelete || action == journal.ActionRelease {
				e.After = nil
			}
			entries = append(entries, e)
		}
		var left []Server
		if test.isLeft {
			left = append(left, Server{UID: uid, Snapshot: server})
		}
		assert.Equal(t, name+": the effects", addEffects(Effects{}, rules.Trace(entries, left, ended)[0]), test.want)
	}
}
