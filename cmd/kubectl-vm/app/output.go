// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

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

// outputFlag is the flag --output.
type outputFlag struct {
	format  string
	formats []string // beside those that print objects
	flags   *genericclioptions.PrintFlags
}

// objectFormats print objects as the API server has them.
var objectFormats = []string{"json", "yaml", "name", "jsonpath=TEMPLATE", "go-template=TEMPLATE"}

// add adds the flag to a command. The formats of the verb stand before those that print
// objects.
func (f *outputFlag) add(cmd *cobra.Command, formats ...string) {
	f.formats = formats
	f.flags = genericclioptions.NewPrintFlags("").WithTypeSetter(scheme.Scheme)
	all := append(slices.Clone(formats), objectFormats...)
	cmd.Flags().StringVarP(&f.format, "output", "o", "", "output format: "+strings.Join(all, ", "))
	cmd.Flags().BoolVar(&f.flags.JSONYamlPrintFlags.ShowManagedFields, "show-managed-fields", false, "keep metadata.managedFields in json and yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return append(slices.Clone(formats), "json", "yaml", "name", "jsonpath=", "go-template="), cobra.ShellCompDirectiveNoFileComp
	})
}

// printsObjects reports whether objects are printed instead of the verb's texts.
func (f *outputFlag) printsObjects() bool {
	return f.format != "" && !slices.Contains(f.formats, f.format)
}

// printer returns what prints objects.
func (f *outputFlag) printer() (printers.ResourcePrinter, error) {
	f.flags.OutputFormat = &f.format
	printer, err := f.flags.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		all := append(slices.Clone(f.formats), objectFormats...)
		return nil, fmt.Errorf("--output %q: allowed are %s", f.format, strings.Join(all, ", "))
	}
	return printer, err
}

// check refuses a format that does not exist, before anything is done.
func (f *outputFlag) check() error {
	if !f.printsObjects() {
		return nil
	}
	_, err := f.printer()
	return err
}

// print prints objects.
func (f *outputFlag) print(out io.Writer, objects ...runtime.Object) error {
	printer, err := f.printer()
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
