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
// under one heading, within 80 columns.
func TestHelpGroupsEveryFlag(t *testing.T) {
	t.Parallel()
	cmd := NewCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--help"})
	assert.NoError(t, cmd.Execute())
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		isOwn := !slices.Contains([]string{"help", "version"}, f.Name)
		assert.True(t, (headingOf(f.Name) == otherFlags) != isOwn, "--%s is under %q", f.Name, headingOf(f.Name))
		want := 1
		if f.Hidden {
			want = 0
		}
		n := len(regexp.MustCompile(`(?m)^ {2,6}(-\w, )?--`+f.Name+`( |$)`).FindAllString(out.String(), -1))
		assert.True(t, n == want, "--%s is there %d times, want %d", f.Name, n, want)
	})
	for line := range strings.Lines(out.String()) {
		assert.True(t, len(line) <= 81, "%q", line)
	}
	at := -1
	for _, heading := range []string{"API server", "Drivers", "Driver docker", "Driver qemu", "Driver fake", "Controller", "High availability", "Endpoints", "Logging", "Other"} {
		if i := strings.Index(out.String(), "\n"+heading+" flags:\n"); i <= at {
			t.Errorf("%q is missing or out of order in\n%s", heading, out.String())
		} else {
			at = i
		}
	}
}
