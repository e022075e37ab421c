// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// BuildRelease makes a release without the archive of sources, and returns its folder.
func BuildRelease(t testing.TB) string {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	out := filepath.Join(t.TempDir(), "release")
	MustRunCommand(t, BuildTimeout, []string{"SOURCES=no"}, filepath.Join(root, "hack", "release.sh"), out)
	return out
}

// FindFile returns the path of the only file in a folder whose name matches a pattern.
func FindFile(t testing.TB, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	assert.NoError(t, err)
	assert.Require(t, len(found) == 1, "%s has the files %q by the pattern %s", dir, found, pattern)
	return found[0]
}
