// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cloudnative.tw/drover/test/assert"
)

// TestRunIsolatesChecks checks that a check that hangs or ignores its context does
// not hide what the others find, and that the findings are in the order of the checks.
func TestRunIsolatesChecks(t *testing.T) {
	t.Parallel()
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	got := Run(t.Context(), []Check{
		{Group: "Host", Name: "hangs", Timeout: time.Millisecond, Run: func(context.Context) []Finding { <-stuck; return nil }},
		{Group: "API", Name: "ends late", Timeout: time.Millisecond, Run: func(ctx context.Context) []Finding {
			<-ctx.Done()
			return []Finding{Error("no answer")}
		}},
		{Group: "API", Name: "does not apply", Run: func(context.Context) []Finding { return nil }},
		{Group: "API", Name: "works", Run: func(context.Context) []Finding { return []Finding{OK("fine"), Note("twice")} }},
	})
	want := []Finding{
		{Group: "Host", Name: "hangs", Level: LevelWarning, Observed: "the check did not end within 1ms"},
		{Group: "API", Name: "ends late", Level: LevelError, Observed: "no answer"},
		{Group: "API", Name: "works", Level: LevelOK, Observed: "fine"},
		{Group: "API", Name: "works", Level: LevelNote, Observed: "twice"},
	}
	for i := range got {
		got[i].Meaning, got[i].Fix = "", ""
	}
	assert.True(t, slices.Equal(got, want), "got %+v", got)
}

func TestWorst(t *testing.T) {
	t.Parallel()
	for want, all := range map[Level][]Finding{
		LevelOK:      nil,
		LevelNote:    {OK("a"), Note("b")},
		LevelWarning: {Warning("a"), Note("b")},
		LevelError:   {OK("a"), Error("b"), Warning("c")},
	} {
		got := Worst(all)
		assert.True(t, got == want, "%v: got %s, want %s", all, got, want)
	}
}

func TestReportOfNothing(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(NewReport(nil))
	assert.True(t, err == nil && string(text) == `{"level":"ok","findings":[]}`, "got %s, %v", text, err)
}

func in(group, name string, f Finding) Finding {
	f.Group, f.Name = group, name
	return f
}

var printed = []Finding{
	in("Host", "kvm", Warning("/dev/kvm is for root alone, and machines run as user drover-qemu").
		Means("Machines are emulated, which is about ten times as slow.").
		FixedBy("give the device a group").FixedByCommand("sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm # this line is long and stays whole")),
	in("Host", "kvm", Note("second")),
	in("API", "certificates", OK("they are valid until 2027")),
}

func TestPrint(t *testing.T) {
	t.Parallel()
	const want = `Host
  warning  kvm           /dev/kvm is for root alone, and
                         machines run as user drover-qemu
                         Machines are emulated, which is
                         about ten times as slow.
                         Fix: give the device a group
                         $ sudo chgrp kvm /dev/kvm && sudo chmod 660 /dev/kvm # this line is long and stays whole
  note                   second

API
  ok       certificates  they are valid until 2027

1 warning, 1 note; 1 ok.
`
	var out bytes.Buffer
	err := Print(&out, printed, Style{Width: 58})
	assert.True(t, err == nil && out.String() == want, "got\n%s, %v, want\n%s", out.String(), err, want)
}

// TestPrintNarrow checks that a terminal without room still gets lines that can be read,
// and that no line but a command is longer than a wide one.
func TestPrintNarrow(t *testing.T) {
	t.Parallel()
	for _, width := range []int{0, 20, 80, 200} {
		var out bytes.Buffer
		assert.NoError(t, Print(&out, printed, Style{Width: width}))
		for line := range strings.Lines(out.String()) {
			n := utf8.RuneCountInString(strings.TrimSpace(line))
			assert.True(t, strings.Contains(line, "$ ") || n <= max(width, minWidth+25), "width %d: %q has %d characters", width, line, n)
		}
	}
}

func TestPrintColor(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Print(&out, printed, Style{Width: 80, Color: true})
	assert.True(t, err == nil && strings.Contains(out.String(), "\x1b[33mwarning\x1b[0m  kvm "), "got %q, %v", out.String(), err)
}

// TestPrintHostile checks that what was observed cannot command the terminal.
func TestPrintHostile(t *testing.T) {
	t.Parallel()
	hostile := "file \x1b]0;title\x07 and\u009b31m\nnext"
	var out bytes.Buffer
	f := in("Host\x1b", "x", Note("%s", hostile).Means("%s", hostile).FixedBy("%s", hostile).FixedByCommand("%s", hostile))
	assert.NoError(t, Print(&out, []Finding{f}, Style{Width: 80}))
	text := strings.Replace(out.String(), "Host\x1b", "", 1)
	assert.True(t, !strings.ContainsAny(text, "\x1b\x07\u009b"), "got %q", text)
}

func TestSummarize(t *testing.T) {
	t.Parallel()
	for want, all := range map[string][]Finding{
		"All 2 checks are ok.":                {OK("a"), OK("b")},
		"2 errors, 1 warning, 2 notes; 1 ok.": {Error("a"), Note("b"), Error("c"), Warning("d"), Note("e"), OK("f")},
	} {
		got := Summarize(all)
		assert.True(t, got == want, "got %q, want %q", got, want)
	}
}
