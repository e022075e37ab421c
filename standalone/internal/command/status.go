// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/status"
)

type statusOptions struct {
	Program

	dataDir string
	output  outputFormat
	out     io.Writer
}

func (p Program) newStatusCommand() *cobra.Command {
	o := &statusOptions{Program: p}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the installation at a glance",
		Long: `Show whether Drover runs and since when, its components, its drivers with their
engines and servers, who leads, the VMs by phase, the disk, and warnings. It
only reads. "drover doctor" says what to do about the warnings.

The exit code is 0 while Drover runs and is ready, 1 if its API does not answer,
2 for a wrong flag, and 3 while Drover is stopped, starts or stops.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.run(cmd.Context())
		},
	}
	o.AddDataDirFlag(cmd.Flags(), &o.dataDir)
	addOutputFlag(cmd.Flags(), &o.output)
	return cmd
}

func (o *statusOptions) run(ctx context.Context) error {
	host, err := o.findHost(o.dataDir)
	if err != nil {
		return err
	}
	s, err := status.Gather(ctx, host)
	if err != nil {
		return err
	}
	if o.output == outputJSON {
		err = printable.JSON(o.out, s)
	} else {
		err = s.Print(o.out, o.Clock.Now(), styleOf(o.out))
	}
	if err != nil {
		return err
	}
	switch {
	case s.State != status.StateReady:
		return &kit.ExitError{Code: exitStopped}
	case s.API != nil && s.API.Error != "":
		return &kit.ExitError{Code: 1}
	}
	return nil
}
