// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/standalone/internal/command"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/purge"
)

type purgeOptions struct {
	dataDir string
	data    bool
	skipped []string
	yes     bool
	in      io.Reader
	out     io.Writer
}

func newPurgeCommand() *cobra.Command {
	o := &purgeOptions{}
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove this installation's servers and, with --data, its data",
		Long: `Remove the servers of the Drover that has this data dir, and no others, after
asking. Drover must be stopped. As root it acts as the user who owns the data
dir. Servers that were released on purpose (deletionPolicy Retain) are left
alone.

Without --data the VirtualMachines stay, and the next "drover up" makes their
servers again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.in, o.out = cmd.InOrStdin(), cmd.OutOrStdout()
			return o.run(cmd.Context())
		},
	}
	addDataDirFlag(cmd.Flags(), &o.dataDir)
	cmd.Flags().BoolVar(&o.data, "data", false, "remove the data dir too: all VirtualMachines, keys and logs")
	cmd.Flags().StringSliceVar(&o.skipped, "skip-engine", nil, "engines to skip, as DRIVER/ID; servers on them stay, and with --data no Drover can attribute them any more")
	cmd.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	return cmd
}

func (o *purgeOptions) run(ctx context.Context) (err error) {
	if err := datadir.BecomeOwner(o.dataDir); err != nil {
		return err
	}
	if empty, err := datadir.IsEmpty(datadir.Layout(o.dataDir)); err == nil && empty {
		o.printf("%s is empty: there is nothing to remove.\n", o.dataDir)
		return nil
	}
	dir, err := datadir.OpenExisting(o.dataDir)
	if err != nil {
		return err
	}
	defer func() { err = CloseDir(dir, err) }()
	found, err := o.findServers(ctx, dir)
	if err != nil {
		return err
	}
	if err := o.checkDoubt(found.Doubt); err != nil {
		return err
	}
	if found.Count() == 0 && !o.data {
		o.printf("No servers to remove.\n")
		return nil
	}
	if err := o.confirmRemoval(dir, found); err != nil {
		return err
	}
	if err := found.Remove(ctx, clock.RealClock{}); err != nil {
		return fmt.Errorf("some servers and the data were not removed: %w", err)
	}
	o.printf("Removed: %s.\n", servers.Count(found.Count(), "server"))
	return o.removeData(dir)
}

// findServers lists the servers on the engines that this installation has used. An
// installation that has never been ready lacks a cluster ID, and so cannot have servers.
func (o *purgeOptions) findServers(ctx context.Context, dir *datadir.Dir) (*purge.Found, error) {
	cluster, err := dir.ClusterID()
	if err != nil {
		return nil, err
	}
	if cluster == "" {
		return &purge.Found{}, nil
	}
	opened, err := engines.Reopen(ctx, dir.Engines(), o.skipped, registry.Options{
		Environment: driver.Environment{ClusterID: cluster, Clock: clock.RealClock{}, Log: logr.Discard()},
	})
	if err != nil {
		return nil, unprovenError(err)
	}
	named := make([]purge.NamedEngine, len(opened))
	for i, d := range opened {
		named[i] = purge.NamedEngine{Name: d.Engine.Driver, Engine: d.Driver, Doubt: d.Doubt}
	}
	return purge.Find(ctx, named)
}

// checkDoubt returns an error if the data are to be removed and servers may be on an unknown engine.
// Without --data it only prints a warning, because a later purge can still find such servers.
func (o *purgeOptions) checkDoubt(doubt error) error {
	if doubt != nil && o.data {
		return unprovenError(doubt)
	}
	if doubt != nil {
		o.printf("Skipped, since servers may be on engines that were not checked:\n%v\n", doubt)
	}
	return nil
}

// unprovenError explains what to do about an engine that may have servers.
func unprovenError(err error) error {
	return fmt.Errorf("nothing was removed, since servers may be on engines that were not checked:\n%w\n"+
		"Run this with the same DOCKER_HOST as drover up, and with the same folders mounted. An engine whose ID is not stored, "+
		"because it did not answer drover up, counts as found if it has servers of this installation. "+
		"Or give up the servers on an engine with --skip-engine and the name of the engine", err)
}

// confirmRemoval prints what purge would remove, and asks the user to confirm it.
func (o *purgeOptions) confirmRemoval(dir *datadir.Dir, found *purge.Found) error {
	if err := found.Print(o.out); err != nil {
		return err
	}
	if found.Released > 0 {
		o.printf("(Released on purpose and left alone: %s.)\n", servers.Count(found.Released, "server"))
	}
	removed := servers.Count(found.Count(), "server")
	if o.data {
		removed += fmt.Sprintf(" and the data dir %s with all VirtualMachines", dir.Layout)
	}
	if o.yes {
		return nil
	}
	return command.Confirm(o.in, o.out, fmt.Sprintf("Remove %s?", removed))
}

func (o *purgeOptions) removeData(dir *datadir.Dir) error {
	if !o.data {
		return nil
	}
	if err := checkNoMachines(dir); err != nil {
		return err
	}
	left, err := dir.Remove()
	if err != nil {
		return err
	}
	o.printf("Data removed.\n")
	if len(left) > 0 {
		o.printf("%s stays, since these are not Drover's: %s\n", dir.Layout, strings.Join(left, ", "))
		return nil
	}
	if empty, err := datadir.IsEmpty(dir.Layout); err == nil && empty {
		o.printf("%s stays, empty: only the owner of the folder above may remove it.\n", dir.Layout)
	}
	return nil
}

// checkNoMachines returns an error if the data dir contains machines that were released or
// belong to another installation: they may run, and their disks are in the data dir.
func checkNoMachines(dir *datadir.Dir) error {
	dirs, err := engines.DataDirs(dir.Engines(), qemu.Name)
	if err != nil {
		return err
	}
	for _, path := range dirs {
		relative, err := filepath.Rel(string(dir.Layout), path)
		if err != nil || !filepath.IsLocal(relative) {
			continue
		}
		opened, err := folder.Open(path, clock.RealClock{})
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		machines, err := opened.Machines()
		if err != nil {
			return err
		}
		if len(machines) > 0 {
			return fmt.Errorf("the data stays: it holds machines that were released or are not this installation's; end them, and move or remove %s",
				strings.Join(machines, ", "))
		}
	}
	return nil
}

func (o *purgeOptions) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(o.out, format, args...)
}
