// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/engines"
)

// removeTimeout is how long the removal of one server may take.
const removeTimeout = time.Minute

type retainedOptions struct {
	Program

	dataDir string
	output  outputFormat
	yes     bool
	in      io.Reader
	out     io.Writer
	errOut  io.Writer
}

func (p Program) newRetainedCommand() *cobra.Command {
	o := &retainedOptions{Program: p}
	cmd := &cobra.Command{
		Use:   "retained",
		Short: "Show and remove servers that were released",
		Long: `Show and remove the servers that were released when their VirtualMachine was
deleted with deletionPolicy Retain. They go on running, and Drover does not
touch them any more. Drover may run or be stopped meanwhile.`,
	}
	list := o.newSubcommand("list", "Show the servers that were released", cobra.NoArgs, func(ctx context.Context, _ []string) error { return o.listRetained(ctx) })
	addOutputFlag(list.Flags(), &o.output)
	remove := o.newSubcommand("delete ID...", "End and remove servers that were released, with their disks", requireArgs("ID"), o.removeRetained)
	remove.Long = `End and remove servers that were released, by their IDs or the beginnings of
these, after asking. A container goes with its anonymous volumes, a machine with
all of its disks: nothing of them can be restored.`
	remove.Flags().BoolVar(&o.yes, "yes", false, "do not ask")
	cmd.AddCommand(list, remove)
	return cmd
}

func (o *retainedOptions) newSubcommand(use, short string, args cobra.PositionalArgs, run func(context.Context, []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.in, o.out, o.errOut = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			return run(cmd.Context(), args)
		},
	}
	o.AddDataDirFlag(cmd.Flags(), &o.dataDir)
	return cmd
}

func (o *retainedOptions) listRetained(ctx context.Context) error {
	all, _, err := o.findRetained(ctx)
	if err != nil {
		return err
	}
	return o.printServers(o.out, describeServers(all), servers.ByID, o.output, servers.NoRetained)
}

// findRetained returns the servers that were released, and the ID of the cluster.
func (o *retainedOptions) findRetained(ctx context.Context) ([]server, string, error) {
	h, err := o.findHost(o.dataDir)
	if err != nil {
		return nil, "", err
	}
	cluster, err := clusterOf(h.Layout)
	if err != nil {
		return nil, "", err
	}
	all, surveyed, err := o.findServers(ctx, h.Layout, cluster)
	warnSilent(o.errOut, surveyed)
	return slices.DeleteFunc(all, func(s server) bool { return !s.Retained }), cluster, err
}

func (o *retainedOptions) removeRetained(ctx context.Context, ids []string) error {
	all, cluster, err := o.findRetained(ctx)
	if err != nil {
		return err
	}
	chosen, err := chooseByID(all, ids)
	if err != nil {
		return err
	}
	if !o.yes {
		if err := o.printServers(o.out, describeServers(chosen), servers.ByID, "", ""); err != nil {
			return err
		}
		if err := Confirm(o.in, o.out, "End and remove "+servers.Count(len(chosen), "server")+" with all disks?"); err != nil {
			return err
		}
	}
	var errs []error
	for _, s := range chosen {
		if err := o.removeServer(ctx, s, cluster); err != nil {
			errs = append(errs, fmt.Errorf("%s server %s of %s/%s: %w", s.engine.Driver, servers.ShortID(s.ID), s.Namespace, s.Name, err))
			continue
		}
		_, _ = fmt.Fprintf(o.out, "Removed: %s server %s of %s/%s.\n", s.engine.Driver, servers.ShortID(s.ID), s.Namespace, s.Name)
	}
	return errors.Join(errs...)
}

// minPrefix is the shortest beginning of an ID that users may give.
const minPrefix = 4

// chooseByID returns the servers that ids name. Each of the ids must be the ID of one server, or the
// beginning of it.
func chooseByID(all []server, ids []string) ([]server, error) {
	var chosen []server
	isChosen := map[driver.Target]bool{}
	for _, id := range ids {
		var found []server
		for _, s := range all {
			if s.ID == id || len(id) >= minPrefix && strings.HasPrefix(s.ID, id) {
				found = append(found, s)
			}
		}
		if len(found) == 0 {
			return nil, fmt.Errorf("no released server has the id %q: drover retained list shows the released servers", id)
		}
		if len(found) > 1 {
			return nil, fmt.Errorf("%d released servers have an id that begins with %q: give more of the id", len(found), id)
		}
		if target := (driver.Target{UID: found[0].UID, ID: found[0].ID}); !isChosen[target] {
			isChosen[target] = true
			chosen = append(chosen, found[0])
		}
	}
	return chosen, nil
}

func (o *retainedOptions) removeServer(ctx context.Context, s server, cluster string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	admin, err := engines.OpenAdmin(s.engine, o.environment(cluster))
	if err != nil {
		return err
	}
	err = admin.RemoveRetained(ctx, driver.Target{UID: s.UID, ID: s.ID})
	if errors.Is(err, syscall.EPERM) {
		return fmt.Errorf("%w: run this as root", err)
	}
	return err
}
