// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"github.com/spf13/cobra"
)

// jsonFlag is the flag --output of a verb that prints text or JSON.
type jsonFlag string

// addFlag adds the flag to a command.
func (f *jsonFlag) addFlag(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVarP((*string)(f), "output", "o", "", usage)
}

// check refuses every format other than JSON.
func (f *jsonFlag) check() error {
	if f.isSet() && *f != "json" {
		return fmt.Errorf("--output %q: allowed is json", string(*f))
	}
	return nil
}

// isSet reports whether the user has chosen a format.
func (f *jsonFlag) isSet() bool { return *f != "" }
