// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DryRun is the flag --dry-run.
type DryRun string

// The values of --dry-run.
const (
	dryRunNone   DryRun = "none"
	dryRunClient DryRun = "client"
	dryRunServer DryRun = "server"
)

// AddFlag adds the flag to a command.
func (d *DryRun) AddFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar((*string)(d), "dry-run", string(dryRunNone),
		`"client" only prints what would be sent, "server" has the API server check it and store nothing`)
	_ = cmd.RegisterFlagCompletionFunc("dry-run", cobra.FixedCompletions(
		[]string{string(dryRunNone), string(dryRunClient), string(dryRunServer)}, cobra.ShellCompDirectiveNoFileComp))
}

// Check returns an error for an unknown value.
func (d *DryRun) Check() error {
	if !slices.Contains([]DryRun{dryRunNone, dryRunClient, dryRunServer}, *d) {
		return fmt.Errorf("--dry-run %q: use none, client or server", *d)
	}
	return nil
}

// IsEnabled reports whether nothing must be stored.
func (d *DryRun) IsEnabled() bool { return *d != dryRunNone }

// IsClient reports whether nothing must be sent to the API server.
func (d *DryRun) IsClient() bool { return *d == dryRunClient }

// RequestOption returns the option dryRun of a request.
func (d *DryRun) RequestOption() []string {
	if *d == dryRunServer {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// Suffix returns the end of a line about a change that was not made.
func (d *DryRun) Suffix() string {
	switch *d {
	case dryRunClient:
		return " (dry run)"
	case dryRunServer:
		return " (server dry run)"
	default:
		return ""
	}
}
