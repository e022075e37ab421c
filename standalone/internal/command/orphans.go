// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	vm "cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/standalone/internal/doctor"
)

// ownersTimeout is how long the API may take to list all VirtualMachines.
const ownersTimeout = 30 * time.Second

type orphansOptions struct {
	Program

	dataDir   string
	output    outputFormat
	yes, wait bool
	timeout   time.Duration
	in        io.Reader
	out       io.Writer
	errOut    io.Writer

	host     *doctor.Host // nil before it was found
	cluster  string
	api      client.Client
	core     rest.Interface
	warnOnce sync.Once
}

func (p Program) newOrphansCommand() *cobra.Command {
	o := &orphansOptions{Program: p}
	cmd := &cobra.Command{
		Use:   "orphans",
		Short: "Show and remove servers that no VirtualMachine owns",
		Long: `Show and remove servers of this installation that no VirtualMachine owns. Drover
removes them by itself after --orphan-grace, unless it is started with
--orphan-policy=report, or suspiciously many look orphaned.

Drover has to run: only its API knows which VirtualMachines there are.`,
	}
	list := o.newSubcommand("list", "Show the servers that no VirtualMachine owns", cobra.NoArgs, o.list)
	addOutputFlag(list.Flags(), &o.output)
	remove := o.newSubcommand("delete UID...", "Have Drover remove servers that no VirtualMachine owns", atLeastOne("UID"), o.remove)
	remove.Long = `Approve, after asking, that servers without a VirtualMachine are removed with
their disks, and wait until the controller has removed them. It first reads the
engine and the API live twice, --orphan-grace apart, so this takes a minute or
two. A server that has a VirtualMachine by then stays.`
	f := remove.Flags()
	f.BoolVar(&o.yes, "yes", false, "do not ask")
	f.BoolVar(&o.wait, "wait", true, "wait until they are removed")
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "how long to wait")
	cmd.AddCommand(list, remove)
	return cmd
}

func (o *orphansOptions) newSubcommand(use, short string, args cobra.PositionalArgs, run func(context.Context, []string) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Args: args,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.in, o.out, o.errOut = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
			if o.timeout <= 0 {
				return &vm.ExitError{Code: exitUsage, Err: fmt.Errorf("--timeout is %s: it must be positive", o.timeout)}
			}
			return run(cmd.Context(), args)
		},
	}
	o.AddDataDirFlag(cmd.Flags(), &o.dataDir)
	return cmd
}

// look reads the engines first and the API live after, so that a VirtualMachine that was
// created meanwhile counts as an owner.
func (o *orphansOptions) look(ctx context.Context) (*servers.Look, error) {
	if o.host == nil {
		if err := o.connect(); err != nil {
			return nil, err
		}
	}
	all, surveyed, err := o.findServers(ctx, o.host.Layout, o.cluster)
	if err != nil {
		return nil, err
	}
	o.warnOnce.Do(func() { warnSilent(o.errOut, surveyed) })
	look := &servers.Look{Servers: describeServers(all), Complete: true, Core: o.core}
	for _, e := range surveyed {
		if e.Err == nil {
			look.Answered = append(look.Answered, servers.Engine{Driver: e.Driver, ID: e.ID})
		} else {
			look.Complete = false
		}
	}
	if o.host.State != nil {
		look.Drivers = o.host.State.Drivers
	}
	look.Owners, err = o.readOwners(ctx)
	return look, err
}

// connect finds the Drover that runs, and its API.
func (o *orphansOptions) connect() error {
	h, err := o.findHost(o.dataDir)
	if err != nil {
		return err
	}
	if o.cluster, err = clusterOf(h.Layout); err != nil {
		return err
	}
	if h.PIDErr != nil {
		return h.PIDErr
	}
	if h.PID == 0 {
		return fmt.Errorf("no Drover runs with the data dir %s: start it, since only its API knows which VirtualMachines there are", h.Layout)
	}
	config, err := h.ClientConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Timeout = -1, ownersTimeout
	if o.api, err = client.New(config, client.Options{Scheme: clientgoscheme.Scheme}); err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	o.host, o.core = h, kube.CoreV1().RESTClient()
	return nil
}

// readOwners reads the VirtualMachines of the API, which has to be that of the servers.
func (o *orphansOptions) readOwners(ctx context.Context) (map[types.UID]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, ownersTimeout)
	defer cancel()
	served, err := app.ClusterID(ctx, o.api)
	if err != nil {
		return nil, err
	}
	if served != o.cluster {
		return nil, fmt.Errorf("the API at %s is that of another cluster (%s) than the servers are of (%s)", o.host.Layout.Kubeconfig(), served, o.cluster)
	}
	owners, err := app.LiveOwners(o.api)(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the VirtualMachines: %w", err)
	}
	return owners, nil
}

func (o *orphansOptions) list(ctx context.Context, _ []string) error {
	look, err := o.look(ctx)
	if err != nil {
		return err
	}
	return o.printServers(o.out, look.Orphans(), servers.ByUID, o.output, servers.NoOrphans)
}

func (o *orphansOptions) remove(ctx context.Context, uids []string) error {
	remover := servers.Remover{Look: o.look, Out: o.out, Clock: o.Clock, Program: "drover"}
	if !o.yes {
		remover.Confirm = func(_ context.Context, question string) error { return Confirm(o.in, o.out, question) }
	}
	if o.wait {
		remover.Timeout = o.timeout
	}
	return remover.Remove(ctx, uids)
}
