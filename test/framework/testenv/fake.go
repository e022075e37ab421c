// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

func (env *Environment) fakeRecordPath(uid types.UID) string {
	return filepath.Join(env.FakeDir, string(uid)+".json")
}

// ReadFakeServer reads a fake server; it is nil if there is none.
func (env *Environment) ReadFakeServer(t testing.TB, uid types.UID) *fake.Record {
	t.Helper()
	return readRecord(t, env.fakeRecordPath(uid))
}

// ReadFakeServers reads all fake servers that were not released.
func (env *Environment) ReadFakeServers(t testing.TB) map[types.UID]*fake.Record {
	return readRecords(t, env.FakeDir)
}

// ReadReleasedServers reads the fake servers that were released.
func (env *Environment) ReadReleasedServers(t testing.TB) map[types.UID]*fake.Record {
	return readRecords(t, filepath.Join(env.FakeDir, "retained"))
}

func readRecords(t testing.TB, dir string) map[types.UID]*fake.Record {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	assert.NoError(t, err)
	all := map[types.UID]*fake.Record{}
	for _, path := range paths {
		if r := readRecord(t, path); r != nil {
			all[r.UID] = r
		}
	}
	return all
}

func readRecord(t testing.TB, path string) *fake.Record {
	t.Helper()
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var r fake.Record
	if err == nil {
		err = json.Unmarshal(content, &r)
	}
	assert.NoError(t, err)
	return &r
}

// EditFakeServer changes the file of a fake server, or adds one.
func (env *Environment) EditFakeServer(t testing.TB, uid types.UID, edit func(*fake.Record)) {
	t.Helper()
	r := env.ReadFakeServer(t, uid)
	if r == nil {
		r = &fake.Record{UID: uid, ClusterID: env.ClusterID}
	}
	edit(r)
	content, err := json.Marshal(r)
	next := filepath.Join(env.temp, string(uid)+".next")
	assert.NoError(t, errors.Join(err, os.WriteFile(next, content, 0o600), os.Rename(next, env.fakeRecordPath(uid))))
}

// RemoveFakeServer removes the file of a fake server.
func (env *Environment) RemoveFakeServer(t testing.TB, uid types.UID) {
	t.Helper()
	assert.NoError(t, os.Remove(env.fakeRecordPath(uid)))
}
