// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// ShortTempDir is t.TempDir for a folder that has sockets: their paths may have 107 bytes, and
// t.TempDir spends many on the test's name.
func ShortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "") //nolint:usetesting // t.TempDir has the test's name in it
	if err == nil {
		err = os.Chmod(dir, 0o755) // #nosec -- as t.TempDir has it: machines have different users
	}
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// ListTree returns all files below a path with the attributes that a change of them changes.
func ListTree(t testing.TB, path string) []string {
	t.Helper()
	var all []string
	assert.NoError(t, filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all = append(all, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
		}
		return err
	}))
	return all
}
