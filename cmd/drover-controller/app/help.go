// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"

	"cloudnative.tw/drover/internal/driver/registry"
)

// flagGroups are the headings of flags in a help text, in order, with the names of the flags
// or the beginnings of these, which end in a dash.
var flagGroups = []struct {
	heading string
	flags   []string
}{
	{"API server", []string{"data-dir", "bind-address", "port", "without-controller", "all-apis", "unsafe-no-fsync", "kubeconfig"}},
	{"Drivers", []string{"vm-driver"}},
	{"Driver docker", []string{"docker-"}},
	{"Driver qemu", []string{"qemu-", "image-"}},
	{"Driver fake", []string{"fake-"}},
	{"Driver pod", []string{"pod-"}},
	{"Controller", []string{"threads", "list-", "usage-", "orphan-", "decisions"}},
	{"High availability", []string{"leader-elect", "leader-elect-", "lease-lock-", "holder-"}},
	{"Endpoints", []string{"streams-", "metrics-", "health-probe-", "pprof-"}},
	{"Logging", []string{"v", "verbosity", "logtostderr"}},
}

// otherFlags is the heading of flags that are in no group.
const otherFlags = "Other"

func headingOf(flag string) string {
	for _, g := range flagGroups {
		for _, name := range g.flags {
			if flag == name || strings.HasSuffix(name, "-") && strings.HasPrefix(flag, name) {
				return g.heading
			}
		}
	}
	return otherFlags
}

// GroupFlags groups the flags of a program under headings, in the order in which they were
// added.
func GroupFlags(fs *pflag.FlagSet) cliflag.NamedFlagSets {
	var sets cliflag.NamedFlagSets
	for _, g := range flagGroups {
		sets.FlagSet(g.heading).SortFlags = false
	}
	fs.VisitAll(func(f *pflag.Flag) { sets.FlagSet(headingOf(f.Name)).AddFlag(f) })
	return sets
}

// GroupHelp groups the flags in the help of a command.
func GroupHelp(cmd *cobra.Command) {
	cmd.Flags().SortFlags = false
	cmd.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		var text bytes.Buffer
		fmt.Fprintf(&text, "%s\n\nUsage:\n  %s\n", cmd.Long, cmd.UseLine())
		sets := GroupFlags(cmd.Flags())
		for _, heading := range sets.Order {
			printFlags(&text, heading, sets.FlagSets[heading], helpWidth(cmd.OutOrStdout()))
		}
		_, _ = cmd.OutOrStdout().Write(text.Bytes())
	})
}

// The widths of a help text: without a terminal, and at most, since longer lines are hard to
// read.
const (
	defaultHelpWidth = 80
	maxHelpWidth     = 100
)

func helpWidth(out io.Writer) int {
	width, _, err := term.TerminalSize(out)
	if err != nil || width < 1 {
		return defaultHelpWidth
	}
	return min(width, maxHelpWidth)
}

// printFlags prints each flag on a line of its own, with its text below, which names of any
// length leave enough room.
func printFlags(text *bytes.Buffer, heading string, fs *pflag.FlagSet, width int) {
	if !fs.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(text, "\n%s:\n", heading)
	fs.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "    --" + f.Name
		if f.Shorthand != "" && f.ShorthandDeprecated == "" {
			name = "-" + f.Shorthand + ", --" + f.Name
		}
		fmt.Fprintf(text, "  %s\n", strings.TrimSpace(name+" "+value))
		for _, line := range wrapWords(trimDriver(usage)+defaultOf(f), width-len(flagIndent)) {
			fmt.Fprintf(text, "%s%s\n", flagIndent, line)
		}
	})
}

// flagIndent begins the lines of a flag's text.
const flagIndent = "        "

// trimDriver removes the driver's name from a text that is under its heading.
func trimDriver(usage string) string {
	for _, name := range registry.Names() {
		if rest, is := strings.CutPrefix(usage, name+": "); is {
			return rest
		}
	}
	return usage
}

// defaultOf returns what to say about the default of a flag, nothing if it is the type's zero
// value.
func defaultOf(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "0", "0s", "false", "[]":
		return ""
	}
	if f.Value.Type() == "string" {
		return fmt.Sprintf(" (default %q)", f.DefValue)
	}
	return " (default " + f.DefValue + ")"
}

// wrapWords breaks a text into lines of at most width characters.
func wrapWords(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	return append(lines, line)
}
