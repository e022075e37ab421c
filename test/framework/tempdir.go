// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"os"
	"testing"
)

// ShortTempDir is t.TempDir for a folder that has sockets: their paths may have 107 bytes, and
// t.TempDir spends many on the test's name.
func ShortTempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "") //nolint:usetesting // t.TempDir has the test's name in it
	if err == nil {
		err = os.Chmod(dir, 0o755) // #nosec -- as t.TempDir has it: machines have users of their own
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
