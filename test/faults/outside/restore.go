// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// folderEngine is an engine whose whole state is in a folder.
type folderEngine interface {
	lab.Engine
	Dir(w *lab.World) string
}

// BackUp makes the backup of an engine for the disturbance Restored.
func BackUp(ctx context.Context, e lab.Engine, w *lab.World) error {
	f, ok := e.(folderEngine)
	if !ok {
		return unsupportedError(Restored)
	}
	out, err := exec.CommandContext(ctx, "cp", "--archive", "--sparse=always", f.Dir(w), backupOf(f, w)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("backup of the engine: %w: %s", err, out)
	}
	return nil
}

func backupOf(e folderEngine, w *lab.World) string { return e.Dir(w) + "-backup" }

// restore replaces the engine's folder by the backup, including its servers and epochs.
func restore(ctx context.Context, e folderEngine, w *lab.World) error {
	seen, err := e.Inspect(ctx, w, nil)
	if err != nil {
		return err
	}
	dir, backup := e.Dir(w), backupOf(e, w)
	if err := unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, backup, unix.RENAME_EXCHANGE); err != nil {
		return err
	}
	restored, err := e.Inspect(ctx, w, nil)
	if err != nil {
		return err
	}
	switch e := e.(type) {
	case lab.Fake:
		before, err := readSnapshots(w, backup)
		after, afterErr := readSnapshots(w, dir)
		err = errors.Join(err, afterErr, recordRestore(w, e.Journal(w), before, after))
		return errors.Join(err, os.RemoveAll(backup))
	case lab.QEMU: // Drover starts no machine while a machine of the same UID runs in another folder
		return errors.Join(recordRestore(w, e.Journal(w), idsOf(seen.Servers), idsOf(restored.Servers)), os.RemoveAll(backup))
	}
	return nil
}

// idsOf returns the servers as the journal of the driver qemu describes them.
func idsOf(servers []lab.Server) map[types.UID]*journal.Snapshot {
	all := map[types.UID]*journal.Snapshot{}
	for _, s := range servers {
		if !s.Released {
			all[s.UID] = s.Snapshot
		}
	}
	return all
}

// recordRestore adds to the journal how the restore has changed each server.
func recordRestore(w *lab.World, path string, before, after map[types.UID]*journal.Snapshot) (err error) {
	uids := map[types.UID]bool{}
	for _, servers := range []map[types.UID]*journal.Snapshot{before, after} {
		for uid := range servers {
			uids[uid] = true
		}
	}
	for uid := range uids {
		entry := journal.Entry{
			At: time.Now(), Cluster: w.ClusterID, UID: uid, Method: string(Restored), Action: rules.ActionOutside, Before: before[uid], After: after[uid],
		}
		err = errors.Join(err, appendEntry(path, entry))
	}
	return err
}

// readSnapshots reads the fake driver's servers of a world from a folder.
func readSnapshots(w *lab.World, dir string) (map[types.UID]*journal.Snapshot, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	all := map[types.UID]*journal.Snapshot{}
	for _, path := range paths {
		var r fake.Record
		content, readErr := os.ReadFile(path)
		if readErr == nil {
			readErr = json.Unmarshal(content, &r)
		}
		err = errors.Join(err, readErr)
		if r.ClusterID == w.ClusterID {
			all[types.UID(strings.TrimSuffix(filepath.Base(path), ".json"))] = snapshotOf(r)
		}
	}
	return all, err
}
