// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver/qemu"
)

type doctorOptions struct {
	Program

	dataDir, qemuDir, qemuBinary string
	output                       outputFormat
	out                          io.Writer
}

func (p Program) newDoctorCommand() *cobra.Command {
	o := &doctorOptions{Program: p}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this host and the installation on it, and say what to fix",
		Long: `Check this host and the installation of Drover on it: KVM, control groups,
confinement, limits of watches, the user of machines, QEMU, Docker, the data
dir and its files, disk room and ports, and the API: its resources and webhooks.
drover status shows what runs.

It changes nothing, and works with or without root, and whether Drover runs or
not. As root it acts as the user who owns the data dir. It takes the settings of
the drover up that runs or ran last, and else those of DROVER_ variables.

The exit code is 0 without errors, 1 with errors and 2 for a wrong flag. Notes
and warnings do not count as errors.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	o.AddDataDirFlag(f, &o.dataDir)
	f.StringVar(&o.qemuDir, "qemu-dir", "", "folder of the machines (default: that of the last drover up, else DIR/drivers/qemu)")
	f.StringVar(&o.qemuBinary, "qemu-binary", "", "the QEMU to check (default: that of the last drover up, else "+qemu.DefaultBinary+")")
	addOutputFlag(f, &o.output)
	return cmd
}

func (o *doctorOptions) run(ctx context.Context) error {
	host, err := o.findHost(o.dataDir)
	if err != nil {
		return err
	}
	host.QEMU.Binary = cmp.Or(o.qemuBinary, host.QEMU.Binary)
	if host.QEMU.Dir, err = filepath.Abs(cmp.Or(o.qemuDir, host.QEMU.Dir)); err != nil {
		return err
	}
	found := host.Examine(ctx)
	if o.output == outputJSON {
		err = printable.JSON(o.out, findings.NewReport(found))
	} else {
		err = findings.Print(printable.Raw(o.out), found, styleOf(o.out))
	}
	if err == nil && findings.Worst(found) == findings.LevelError {
		return &kit.ExitError{Code: 1} // the findings have been printed
	}
	return err
}
