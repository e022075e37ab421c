// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
)

type machinesOptions struct {
	dataDir, qemuDir string
	timeout          time.Duration
	out              io.Writer
}

func newMachinesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "machines", Short: "Act on the machines of the qemu driver"}
	cmd.AddCommand(newShutdownCommand())
	return cmd
}

func newShutdownCommand() *cobra.Command {
	o := &machinesOptions{}
	cmd := &cobra.Command{
		Use:   "shutdown",
		Short: "Shut down all machines before their host shuts down",
		Long: `Press the power button of every machine, wait until its guest has shut down or
its shutdownGracePeriodSeconds are over, and end it. Drover must be stopped, and
starts the machines again when it is started.

drover-machines.service runs this when the host shuts down.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.out = cmd.OutOrStdout()
			return o.shutDownMachines(cmd.Context())
		},
	}
	addDataDirFlag(cmd.Flags(), &o.dataDir)
	cmd.Flags().StringVar(&o.qemuDir, "qemu-dir", "", "folder of the machines of a stopped drover-controller (default: the folders that the Drover of the data dir has used)")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 5*time.Minute, "maximum time that a guest may take, whatever its grace period")
	return cmd
}

// shutDownMachines shuts down all machines. It holds the data dir, so that no Drover restarts a machine
// during that time.
func (o *machinesOptions) shutDownMachines(ctx context.Context) (err error) {
	if o.timeout < 0 {
		return fmt.Errorf("--timeout is %s: it must not be negative", o.timeout)
	}
	if err := datadir.BecomeOwner(cmp.Or(o.qemuDir, o.dataDir)); err != nil {
		return err
	}
	if o.qemuDir != "" {
		return o.shutDownFolders(ctx, []string{o.qemuDir})
	}
	dir, err := datadir.OpenExisting(o.dataDir)
	if inUse, held := errors.AsType[*datadir.InUseError](err); held {
		return fmt.Errorf("%w: stop it first, since it would start the machines again", inUse)
	}
	if err != nil {
		return err
	}
	defer func() { err = CloseDir(dir, err) }()
	folders, err := engines.DataDirs(dir.Engines(), qemu.Name)
	if err != nil {
		return err
	}
	return o.shutDownFolders(ctx, folders)
}

// shutDownFolders shuts down the machines of all folders at the same time.
func (o *machinesOptions) shutDownFolders(ctx context.Context, folders []string) error {
	ended, errs := make([][]*qemu.ShutdownResult, len(folders)), make([]error, len(folders))
	var all sync.WaitGroup
	for i, path := range folders {
		all.Go(func() { ended[i], errs[i] = o.shutDownFolder(ctx, path) })
	}
	all.Wait()
	var count int
	for _, some := range ended {
		for _, m := range some {
			count++
			errs = append(errs, o.printResult(m))
		}
	}
	if count == 0 {
		_, _ = fmt.Fprintln(o.out, "No machines run.")
	}
	return errors.Join(errs...)
}

// shutDownFolder shuts down the machines of a folder. It skips a folder of the data dir's records that does not exist any
// more.
func (o *machinesOptions) shutDownFolder(ctx context.Context, path string) ([]*qemu.ShutdownResult, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && o.qemuDir == "" {
		return nil, nil
	}
	return qemu.ShutDown(ctx, qemu.Options{Dir: path}, o.timeout)
}

func (o *machinesOptions) printResult(m *qemu.ShutdownResult) error {
	how := "powered off"
	switch {
	case m.Err != nil:
		return fmt.Errorf("machine %s/%s: %w", m.Namespace, m.Name, m.Err)
	case m.Forced:
		how = "ended by force, since its guest did not power off in time"
	}
	_, err := fmt.Fprintf(o.out, "%s/%s: %s\n", m.Namespace, m.Name, how)
	return err
}
