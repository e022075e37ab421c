// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestCutLog checks that the end of a log is put aside, and that a process which has the
// log open continues in it.
func TestCutLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|flags, 0o600)
		assert.NoError(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	prints, log, aside := open("log", os.O_APPEND|os.O_WRONLY), open("log", os.O_RDWR), open("aside", os.O_RDWR)
	assert.NoError(t, CutLog(log, aside, 10))
	for _, c := range []struct{ prints, log, old string }{
		{"0123456789abcdef", "", "6789abcdef"},
		{"more", "more", "6789abcdef"},
		{" and much more", "", " much more"},
	} {
		assert.NoError(t, assert.ErrorOf(prints.WriteString(c.prints)))
		assert.NoError(t, CutLog(log, aside, 10))
		for name, want := range map[string]string{"log": c.log, "aside": c.old} {
			got, err := os.ReadFile(filepath.Join(dir, name))
			assert.True(t, err == nil && string(got) == want, "%s has %q, %v; want %q", name, got, err, want)
		}
	}
}
