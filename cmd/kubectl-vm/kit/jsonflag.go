// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"

	"github.com/spf13/cobra"
)

// JSONFlag is the flag --output of a verb that prints text or JSON.
type JSONFlag string

// AddFlag adds the flag to a command.
func (f *JSONFlag) AddFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP((*string)(f), "output", "o", "", usage)
}

// Check returns an error for every format other than JSON.
func (f *JSONFlag) Check() error {
	if f.IsSet() && *f != "json" {
		return fmt.Errorf("--output %q: allowed is json", string(*f))
	}
	return nil
}

// IsSet reports whether the user has chosen a format.
func (f *JSONFlag) IsSet() bool { return *f != "" }
