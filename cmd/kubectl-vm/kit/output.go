// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"cloudnative.tw/drover/client/clientset/versioned/scheme"
)

// OutputFlag is the flag --output.
type OutputFlag struct {
	Format  string
	formats []string // in addition to objectFormats
	flags   *genericclioptions.PrintFlags
}

// objectFormats are the formats that print objects of the API server unchanged.
var objectFormats = []string{"json", "yaml", "name", "jsonpath=TEMPLATE", "go-template=TEMPLATE"}

// AddFlag adds the flag to a command. Its help lists the formats of the verb before the objectFormats.
func (f *OutputFlag) AddFlag(cmd *cobra.Command, formats ...string) {
	f.formats = formats
	f.flags = genericclioptions.NewPrintFlags("").WithTypeSetter(scheme.Scheme)
	all := append(slices.Clone(formats), objectFormats...)
	cmd.Flags().StringVarP(&f.Format, "output", "o", "", "output format: "+strings.Join(all, ", "))
	cmd.Flags().BoolVar(&f.flags.JSONYamlPrintFlags.ShowManagedFields, "show-managed-fields", false, "keep metadata.managedFields in json and yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return append(slices.Clone(formats), "json", "yaml", "name", "jsonpath=", "go-template="), cobra.ShellCompDirectiveNoFileComp
	})
}

// PrintsObjects reports whether the format is one of objectFormats.
func (f *OutputFlag) PrintsObjects() bool {
	return f.Format != "" && !slices.Contains(f.formats, f.Format)
}

// newPrinter returns the printer of objects in the format.
func (f *OutputFlag) newPrinter() (printers.ResourcePrinter, error) {
	f.flags.OutputFormat = &f.Format
	printer, err := f.flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		all := append(slices.Clone(f.formats), objectFormats...)
		return nil, fmt.Errorf("--output %q: allowed are %s", f.Format, strings.Join(all, ", "))
	}
	return printer, err
}

// Check returns an error for a format that does not exist. Verbs check this before they do anything.
func (f *OutputFlag) Check() error {
	if !f.PrintsObjects() {
		return nil
	}
	_, err := f.newPrinter()
	return err
}

// PrintObjects prints objects.
func (f *OutputFlag) PrintObjects(out io.Writer, objects ...runtime.Object) error {
	printer, err := f.newPrinter()
	if err != nil {
		return err
	}
	for _, object := range objects {
		if err := printer.PrintObj(object, out); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}
