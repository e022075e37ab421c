// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCutLog checks that the end of a log is put aside, and that a process which has the
// log open continues in it. What was put aside stays if another process has just cut the
// log, or is about to.
func TestCutLog(t *testing.T) {
	t.Parallel()
	m := Machine{Path: t.TempDir(), Staging: folder(t.TempDir())}
	must(t, m.CutLog("some.log", 10))
	log, err := os.OpenFile(m.File("some.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
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
			must(t, err)
			defer unlock()
		}
		_, err = log.WriteString(c.prints)
		must(t, err)
		must(t, m.CutLog("some.log", 10))
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
		if got := lastLine(text, 10); got != want {
			t.Errorf("of %q: %q, want %q", text, got, want)
		}
	}
	path := filepath.Join(t.TempDir(), LogFile)
	must(t, os.WriteFile(path, []byte("end"), 0o600))
	if got := (Machine{Path: filepath.Dir(path)}).LastOutput(10); got != "end" {
		t.Errorf("got %q", got)
	}
}
