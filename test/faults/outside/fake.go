// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// edits change records in the way that docs/drivers.md describes. No workload uses 250 mCPU.
var edits = map[Disturbance]func(*fake.Record){
	Stopped: func(r *fake.Record) { r.State, r.Exit = driver.StateStopped, &fake.Exit{At: time.Now()} },
	Killed: func(r *fake.Record) {
		r.State, r.Exit = driver.StateStopped, &fake.Exit{Code: 137, Reason: "killed", At: time.Now()}
	},
	Paused:  func(r *fake.Record) { r.State = driver.StatePaused },
	Resized: func(r *fake.Record) { r.CPUMilli = 250 },
}

// disturbFake edits or removes a server's file. It adds an entry to the journal, so that the
// journal has every change of the server.
func disturbFake(w *lab.World, dir, path string, uid types.UID, d Disturbance) error {
	lock, err := lockServer(dir, uid)
	if err != nil {
		return err
	}
	defer lock.Release()
	file := filepath.Join(dir, string(uid)+".json")
	content, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return ErrNoServer
	}
	var r fake.Record
	if err := errors.Join(err, json.Unmarshal(content, &r)); err != nil {
		return err
	}
	entry := journal.Entry{At: time.Now(), Cluster: w.ClusterID, UID: uid, Method: string(d), Action: rules.ActionOutside, Before: snapshotOf(r)}
	if d == Removed {
		return errors.Join(appendEntry(path, entry), os.Remove(file))
	}
	edit := edits[d]
	if edit == nil {
		return unsupportedError(d)
	}
	if r.State != driver.StateRunning && d != Resized {
		return ErrNoServer // a server that is not running cannot be changed
	}
	edit(&r)
	entry.After = snapshotOf(r)
	if content, err = json.Marshal(r); err != nil {
		return err
	}
	return errors.Join(appendEntry(path, entry), os.WriteFile(file+"~", content, 0o600), os.Rename(file+"~", file))
}

func lockServer(dir string, uid types.UID) (lock *statedir.Lock, err error) {
	folder, err := statedir.OpenExisting("the engine's folder", dir)
	if err != nil {
		return nil, err
	}
	err = assert.Poll(context.Background(), "the lock of the server", func() error {
		lock, err = folder.Lock(uid)
		return err
	})
	return lock, err
}

func snapshotOf(r fake.Record) *journal.Snapshot {
	return &journal.Snapshot{ID: r.ID, Run: r.Run, State: r.State}
}

func appendEntry(path string, e journal.Entry) error {
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}
