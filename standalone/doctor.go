// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	vm "cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
)

type doctorOptions struct {
	dataDir, qemuDir, qemuBinary string
	output                       outputFormat
	out                          io.Writer
}

func newDoctorCommand() *cobra.Command {
	o := &doctorOptions{}
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this host and the installation on it, and say how to fix what is wrong",
		Long: `Check this host and the installation of Drover on it: KVM, control groups, QEMU,
Docker, disk room, clock, ports, permissions, confinement, certificates, the API.

It changes nothing, and works with or without root, and whether Drover runs or not. As
root it checks what the user that Drover runs as may do. It takes the settings of the
drover up that runs or ran last, and else those of DROVER_ variables.

The exit code is 0 without errors, 1 with errors and 2 for a wrong flag. Notes and
warnings are no errors.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	addDataDirFlag(f, &o.dataDir)
	f.StringVar(&o.qemuDir, "qemu-dir", "", "folder of the machines (default: that of the last drover up, else DIR/drivers/qemu)")
	f.StringVar(&o.qemuBinary, "qemu-binary", "", "the QEMU to check (default: that of the last drover up, else "+qemu.DefaultBinary+")")
	addOutputFlag(f, &o.output)
	return useUsageCode(cmd)
}

func (o *doctorOptions) run(ctx context.Context) error {
	host, err := o.findHost(ctx)
	if err != nil {
		return err
	}
	found := host.Examine(ctx)
	if o.output == outputJSON {
		err = printJSON(o.out, findings.NewReport(found))
	} else {
		err = findings.Print(o.out, found, styleOf(o.out))
	}
	if err == nil && findings.Worst(found) == findings.LevelError {
		return &vm.ExitError{Code: 1} // what there is to say has been printed
	}
	return err
}

// findHost returns the host with the settings of the run that is or was last.
func (o *doctorOptions) findHost(ctx context.Context) (*doctor.Host, error) {
	path, err := filepath.Abs(o.dataDir)
	if err != nil {
		return nil, err
	}
	h := doctor.NewHost(ctx, datadir.Layout(path), droverVersion, clock.RealClock{})
	up, err := settingsOf(h)
	if err != nil {
		return nil, err
	}
	h.Settings = doctor.Settings{
		BindAddress: up.bindAddress, Port: up.port, VMDriver: up.controller.VMDriver, WithoutController: up.withoutController,
		Addresses: map[string]string{
			"--metrics-bind-address": up.controller.MetricsAddress, "--health-probe-bind-address": up.controller.HealthAddress,
			"--pprof-bind-address": up.controller.PprofAddress,
		},
	}
	if machines, is := up.controller.Drivers[qemu.Name].(*qemu.Options); is {
		h.QEMU = *machines
	}
	h.QEMU.Binary = cmp.Or(o.qemuBinary, h.QEMU.Binary)
	h.QEMU.Dir, err = filepath.Abs(cmp.Or(o.qemuDir, h.QEMU.Dir, filepath.Join(h.Layout.Drivers(), qemu.Name)))
	return h, err
}

// settingsOf returns the flags of the last `drover up`, and those of the environment. It takes
// over which engine that one used.
func settingsOf(h *doctor.Host) (*upOptions, error) {
	up, f := newUpOptions(), pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true // those of another version
	up.addFlags(f)
	if h.State != nil {
		_ = f.Parse(h.State.Args) // else the defaults remain
		for name, value := range h.State.Environment {
			if os.Getenv(name) == "" {
				if err := os.Setenv(name, value); err != nil {
					return nil, fmt.Errorf("the environment of the last run: %w", err)
				}
			}
		}
	}
	if h.PID == 0 {
		if err := app.SetFromEnv(f); err != nil {
			return nil, &vm.ExitError{Code: exitUsage, Err: err}
		}
	}
	return up, nil
}
