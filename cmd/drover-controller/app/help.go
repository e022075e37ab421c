// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/term"
)

// flagGroups are the headings of flags in a help text, in order, with the names of the flags
// or the beginnings of these, which end in a dash.
var flagGroups = []struct {
	heading string
	flags   []string
}{
	{"API server", []string{"data-dir", "bind-address", "port", "without-controller", "store-quota", "all-apis", "login-dir", "unsafe-no-fsync", "kubeconfig"}},
	{"Drivers", []string{"vm-driver"}},
	{"Driver docker", []string{"docker-"}},
	{"Driver qemu", []string{"qemu-", "image-"}},
	{"Driver fake", []string{"fake-"}},
	{"Driver pod", []string{"pod-"}},
	{"Controller", []string{"threads", "list-", "usage-", "orphan-"}},
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

// The widths of a help text: without a terminal, and at most, since longer lines are hard to
// read.
const (
	defaultHelpWidth = 80
	maxHelpWidth     = 100
)

// GroupHelp groups the flags in the help of a command.
func GroupHelp(cmd *cobra.Command) {
	width, _, err := term.TerminalSize(cmd.OutOrStdout())
	if err != nil || width < 1 {
		width = defaultHelpWidth
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	cliflag.SetUsageAndHelpFunc(cmd, GroupFlags(cmd.Flags()), min(width, maxHelpWidth))
}
