// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// dryRun is the flag --dry-run.
type dryRun string

// The values of --dry-run.
const (
	dryRunNone   dryRun = "none"
	dryRunClient dryRun = "client"
	dryRunServer dryRun = "server"
)

func (d *dryRun) addFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(d), "dry-run", string(dryRunNone),
		`"client" only prints what would be sent, "server" has the API server check it and store nothing`)
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions(
		[]string{string(dryRunNone), string(dryRunClient), string(dryRunServer)}, cobra.ShellCompDirectiveNoFileComp))
}

func (d *dryRun) check() error {
	if !slices.Contains([]dryRun{dryRunNone, dryRunClient, dryRunServer}, *d) {
		return fmt.Errorf("--dry-run %q: use none, client or server", *d)
	}
	return nil
}

func (d *dryRun) enabled() bool { return *d != dryRunNone }
func (d *dryRun) client() bool  { return *d == dryRunClient }

// options returns the option of a request.
func (d *dryRun) options() []string {
	if *d == dryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// suffix ends the lines about changes that were not made.
func (d *dryRun) suffix() string {
	switch *d {
	case dryRunClient:
		return " (dry run)"
	case dryRunServer:
		return " (server dry run)"
	default:
		return ""
	}
}
