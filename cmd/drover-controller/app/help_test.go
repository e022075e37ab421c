// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"cloudnative.tw/drover/test/assert"
)

// TestHelpGroupsEveryFlag checks that the help has every flag once, or never if it is hidden,
// under a heading of its own, within 80 columns.
func TestHelpGroupsEveryFlag(t *testing.T) {
	t.Parallel()
	cmd := NewCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--help"})
	assert.NoError(t, cmd.Execute())
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		isOwn := !slices.Contains([]string{"help", "version"}, f.Name)
		if (headingOf(f.Name) == otherFlags) == isOwn {
			t.Errorf("--%s is under %q", f.Name, headingOf(f.Name))
		}
		want := 1
		if f.Hidden {
			want = 0
		}
		if n := len(regexp.MustCompile(`(?m)^  (-\w, )?--`+f.Name+`( |$)`).FindAllString(out.String(), -1)); n != want {
			t.Errorf("--%s is there %d times, want %d", f.Name, n, want)
		}
	})
	for line := range strings.Lines(out.String()) {
		if len(line) > 81 || strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
			t.Errorf("%q", line)
		}
	}
	at := -1
	for _, heading := range []string{"Usage:", "API server:", "Drivers:", "Driver docker:", "Driver qemu:", "Driver fake:", "Controller:", "High availability:", "Endpoints:", "Logging:", "Other:"} {
		if i := strings.Index(out.String(), "\n"+heading+"\n"); i <= at {
			t.Errorf("%q is missing or out of order in\n%s", heading, out.String())
		} else {
			at = i
		}
	}
}

func TestPrintFlags(t *testing.T) {
	t.Parallel()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.String("fake-dir", "/d", "fake: the `FOLDER` of servers, a text that is too long for one line")
	fs.IntP("verbosity", "v", 0, "how much is logged")
	fs.Duration("wait", 5e9, "")
	fs.Bool("secret", false, "not shown")
	assert.NoError(t, fs.MarkHidden("secret"))
	var out bytes.Buffer
	printFlags(&out, "Some", fs, 40)
	printFlags(&out, "None", pflag.NewFlagSet("", pflag.ContinueOnError), 40)
	const want = `
Some:
  --fake-dir FOLDER
        the FOLDER of servers, a text
        that is too long for one line
        (default "/d")
  -v, --verbosity int
        how much is logged
  --wait duration
        (default 5s)
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}
