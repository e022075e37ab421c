// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// TestHelpFits checks that the help of every command has at most 80 columns. That of kubectl is
// kubectl's, and that of drover vm is that of kubectl vm.
func TestHelpFits(t *testing.T) { checkHelp(t, Program{}.newRootCommand()) }

func checkHelp(t *testing.T, c *cobra.Command) {
	t.Helper()
	var out bytes.Buffer
	c.SetOut(&out)
	if err := c.Help(); err != nil || out.Len() == 0 {
		t.Errorf("%s prints %q, %v", c.CommandPath(), out.String(), err)
	}
	for line := range strings.Lines(out.String()) {
		if line = strings.TrimRight(line, "\n"); utf8.RuneCountInString(line) > 80 {
			t.Errorf("%s --help: %d columns: %s", c.CommandPath(), utf8.RuneCountInString(line), line)
		}
	}
	for _, sub := range c.Commands() {
		if sub.Name() != "kubectl" && !sub.Hidden {
			checkHelp(t, sub)
		}
	}
}
