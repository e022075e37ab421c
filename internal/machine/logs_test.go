// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"path/filepath"
	"strings"
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

// TestFindTail checks where the last lines begin, also across blocks.
func TestFindTail(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 70<<10) + "\n"
	for name, c := range map[string]struct {
		text  string
		lines int64
		want  string
	}{
		"none":         {"a\nb\n", 0, ""},
		"one":          {"a\nb\n", 1, "b\n"},
		"open":         {"a\nb", 1, "b"},
		"two":          {"a\nb\nc\n", 2, "b\nc\n"},
		"empty ones":   {"a\n\n\n", 2, "\n\n"},
		"all":          {"a\nb\n", 2, "a\nb\n"},
		"more":         {"a\nb\n", 9, "a\nb\n"},
		"of nothing":   {"", 1, ""},
		"across block": {"a\n" + long + "b\n", 2, long + "b\n"},
		"the largest":  {"a\n", 1<<63 - 1, "a\n"},
	} {
		at, err := findTail(strings.NewReader(c.text), int64(len(c.text)), c.lines)
		assert.True(t, err == nil && c.text[at:] == c.want, "%s: got %d, %v", name, at, err)
	}
	at, err := findTail(strings.NewReader("a"), 100, 1)
	assert.True(t, at == 0 && err == nil, "of a log that is cut meanwhile: %d, %v", at, err)
}
