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
// log open continues in it. What was put aside stays if another process has just cut the
// log, or is about to.
func TestCutLog(t *testing.T) {
	t.Parallel()
	m := Machine{Path: t.TempDir(), Staging: folder(t.TempDir())}
	assert.NoError(t, m.CutLog("some.log", 10))
	log, err := os.OpenFile(m.File("some.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	assert.NoError(t, err)
	defer func() { _ = log.Close() }()
	for _, c := range []struct{ prints, log, old string }{
		{"0123456789abcdef", "", "6789abcdef"},
		{"more", "more", "6789abcdef"},
		{" and much more", "", " much more"},
		{"held", "held", " much more"},
		{" by another", "held by another", " much more"},
	} {
		if c.prints == "held" {
			unlock, err := tryLock(log.Name(), 0)
			assert.NoError(t, err)
			defer unlock()
		}
		assert.NoError(t, assert.ErrorOf(log.WriteString(c.prints)))
		assert.NoError(t, m.CutLog("some.log", 10))
		for name, want := range map[string]string{"some.log": c.log, "some.log" + OldLog: c.old} {
			if got, err := os.ReadFile(m.File(name)); err != nil || string(got) != want {
				t.Errorf("%s has %q, %v; want %q", name, got, err, want)
			}
		}
	}
}

func TestLastLine(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                       "",
		"one\ntwo\n":             "one; two",
		"\x1b[31mred\x1b[0m\r\n": "[31mred[0m",
		"a\x00b\u0085c\xffd":     "abcd",
		"漢漢漢漢":                   "漢漢漢", // 10 bytes would begin within the first
		"\n\n  x  \n":            "x",
		strings.Repeat("a", 20):  strings.Repeat("a", 10),
	} {
		if got := Printable(text, 10); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
	path := filepath.Join(t.TempDir(), LogFile)
	assert.NoError(t, os.WriteFile(path, []byte("end"), 0o600))
	if got := (Machine{Path: filepath.Dir(path)}).LastOutput(10); got != "end" {
		t.Errorf("got %q", got)
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
		if err != nil || c.text[at:] != c.want {
			t.Errorf("%s: got %d, %v", name, at, err)
		}
	}
	if at, err := findTail(strings.NewReader("a"), 100, 1); at != 0 || err != nil {
		t.Errorf("of a log that is cut meanwhile: %d, %v", at, err)
	}
}
