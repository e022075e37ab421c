// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	vm "cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
)

const (
	// ownersTimeout is how long the API may take to list all VirtualMachines.
	ownersTimeout = 30 * time.Second
	// pollPeriod is the interval between two looks for a server that is to go.
	pollPeriod = 2 * time.Second
)

type orphansOptions struct {
	Program

	dataDir   string
	output    outputFormat
	yes, wait bool
	timeout   time.Duration
	in        io.Reader
	out       io.Writer
	errOut    io.Writer
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
			if o.timeout < 0 {
				return &vm.ExitError{Code: exitUsage, Err: fmt.Errorf("--timeout is %s: it must not be negative", o.timeout)}
			}
			return run(cmd.Context(), args)
		},
	}
	o.AddDataDirFlag(cmd.Flags(), &o.dataDir)
	return cmd
}

// review is what was found at a look at the engines and at the API.
type review struct {
	host    *doctor.Host
	api     client.Client
	cluster string
	servers []server // all of the cluster
	silent  []engines.Surveyed
	owners  map[types.UID]bool
}

// orphans returns the servers that no VirtualMachine owns.
func (r *review) orphans() []server {
	var all []server
	for _, s := range r.servers {
		if inventory.MayBeOrphan(s.Server) && !r.owners[s.UID] {
			all = append(all, s)
		}
	}
	return all
}

// look reads the engines first and the API live after, so that a VirtualMachine that was
// created meanwhile counts as an owner.
func (o *orphansOptions) look(ctx context.Context) (*review, error) {
	h, err := o.findHost(ctx, o.dataDir)
	if err != nil {
		return nil, err
	}
	r := &review{host: h}
	if r.cluster, err = clusterOf(h.Layout); err != nil {
		return nil, err
	}
	if h.PIDErr != nil {
		return nil, h.PIDErr
	}
	if h.PID == 0 {
		return nil, fmt.Errorf("no Drover runs with the data dir %s: start it, since only its API knows which VirtualMachines there are", h.Layout)
	}
	if r.api, err = o.connect(h); err != nil {
		return nil, err
	}
	err = o.read(ctx, r)
	warnSilent(o.errOut, r.silent)
	return r, err
}

// read reads the servers, and then their owners.
func (o *orphansOptions) read(ctx context.Context, r *review) (err error) {
	if r.servers, r.silent, err = o.findServers(ctx, r.host.Layout, r.cluster); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ownersTimeout)
	defer cancel()
	served, err := app.ClusterID(ctx, r.api)
	if err != nil {
		return err
	}
	if served != r.cluster {
		return fmt.Errorf("the API at %s is that of another cluster (%s) than the servers are of (%s)", r.host.Layout.Kubeconfig(), served, r.cluster)
	}
	if r.owners, err = app.LiveOwners(r.api)(ctx); err != nil {
		return fmt.Errorf("read the VirtualMachines: %w", err)
	}
	return nil
}

func (o *orphansOptions) connect(h *doctor.Host) (client.Client, error) {
	config, err := h.ClientConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Timeout = -1, ownersTimeout
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

func (o *orphansOptions) list(ctx context.Context, _ []string) error {
	r, err := o.look(ctx)
	if err != nil {
		return err
	}
	return o.printServers(o.out, r.orphans(), keyUID, o.output, "Every server has a VirtualMachine.")
}

func (o *orphansOptions) remove(ctx context.Context, uids []string) error {
	r, err := o.look(ctx)
	if err != nil {
		return err
	}
	chosen, err := r.choose(uids)
	if err != nil {
		return err
	}
	if !o.yes {
		if err := o.printServers(o.out, chosen, keyUID, "", ""); err != nil {
			return err
		}
		if err := Confirm(o.in, o.out, "Have Drover end and remove "+countServers(len(chosen))+" with all disks?"); err != nil {
			return err
		}
	}
	if err := o.approve(ctx, r, chosen); err != nil {
		return fmt.Errorf("approve the removal: %w", err)
	}
	if !o.wait {
		_, _ = fmt.Fprintf(o.out, "Approved: %s. Drover removes them after it has read engine and API twice more.\n", countServers(len(chosen)))
		return nil
	}
	return o.waitForRemoval(ctx, r, chosen)
}

// choose returns the orphans of some UIDs, or says why one is none.
func (r *review) choose(uids []string) ([]server, error) {
	var chosen []server
	var errs []error
	orphans := r.orphans()
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(uids))) {
		before := len(chosen)
		for _, s := range orphans {
			if string(s.UID) == uid {
				chosen = append(chosen, s)
			}
		}
		if len(chosen) == before {
			errs = append(errs, r.explain(types.UID(uid)))
		}
	}
	for _, s := range chosen {
		errs = append(errs, r.checkDriver(s))
	}
	return chosen, errors.Join(errs...)
}

// explain says why a UID names no orphan.
func (r *review) explain(uid types.UID) error {
	for _, s := range r.servers {
		switch {
		case s.UID != uid:
		case s.Retained:
			return fmt.Errorf("%s was released, and is no orphan: drover retained delete %s", uid, shortID(s.ID))
		case r.owners[uid]:
			return fmt.Errorf("%s belongs to the VirtualMachine %s/%s: delete that", uid, s.Namespace, s.Name)
		case s.Err != nil:
			return fmt.Errorf("%s cannot be read, so it is not known whose it is: %w", uid, s.Err)
		}
	}
	return fmt.Errorf("no server of this installation has the UID %q: drover orphans list shows those without a VirtualMachine", uid)
}

// checkDriver refuses a server whose driver the controller does not run, since that never
// removes it.
func (r *review) checkDriver(s server) error {
	state := r.host.State
	if state == nil || slices.Contains(state.Drivers, s.engine.Driver) {
		return nil
	}
	return fmt.Errorf("%s is a server of driver %s, which Drover does not run: start it with --vm-driver=%s", s.UID, s.engine.Driver, strings.Join(append(slices.Clone(state.Drivers), s.engine.Driver), ","))
}

// approve adds approvals, and removes those of servers that are gone.
func (o *orphansOptions) approve(ctx context.Context, r *review, chosen []server) error {
	approvals := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: app.ApprovalsName}}
	err := r.api.Get(ctx, client.ObjectKeyFromObject(approvals), approvals)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	exists := err == nil
	data := map[string]any{}
	for uid := range approvals.Data {
		if len(r.silent) == 0 && !slices.ContainsFunc(r.servers, func(s server) bool { return string(s.UID) == uid }) {
			data[uid] = nil
		}
	}
	approvals.Data = map[string]string{}
	for _, s := range chosen {
		data[string(s.UID)], approvals.Data[string(s.UID)] = s.ID, s.ID
	}
	switch {
	case len(data) == 0:
		return nil
	case !exists:
		return r.api.Create(ctx, approvals)
	}
	patch, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		return err
	}
	return r.api.Patch(ctx, approvals, client.RawPatch(types.MergePatchType, patch))
}

// waitForRemoval waits until the controller has removed the servers.
func (o *orphansOptions) waitForRemoval(ctx context.Context, r *review, chosen []server) error {
	_, _ = fmt.Fprintln(o.out, "Approved. Drover reads engine and API twice more, then removes them ...")
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	ticker := o.Clock.NewTicker(pollPeriod)
	defer ticker.Stop()
	for {
		if err := o.read(ctx, r); err != nil && ctx.Err() == nil {
			return err
		}
		if ctx.Err() == nil {
			chosen = o.reportGone(r, chosen)
		}
		if len(chosen) == 0 {
			return o.approve(ctx, r, nil)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s, such as %s, not removed within %s: the approval stays; the log says what the sweep waits for", countServers(len(chosen)), chosen[0].UID, o.timeout)
		case <-ticker.C():
		}
	}
}

// reportGone prints which servers are gone, or have a VirtualMachine again, and returns the
// others.
func (o *orphansOptions) reportGone(r *review, waited []server) []server {
	var left []server
	for _, s := range waited {
		isThere := slices.ContainsFunc(r.servers, func(other server) bool { return other.UID == s.UID && other.ID == s.ID })
		isUnknown := slices.ContainsFunc(r.silent, func(e engines.Surveyed) bool { return e.Engine == s.engine })
		switch {
		case isUnknown:
			left = append(left, s)
		case !isThere:
			_, _ = fmt.Fprintf(o.out, "Removed: %s server %s of %s/%s.\n", s.engine.Driver, shortID(s.ID), s.Namespace, s.Name)
		case r.owners[s.UID]:
			_, _ = fmt.Fprintf(o.out, "Left: %s has a VirtualMachine again.\n", s.UID)
		default:
			left = append(left, s)
		}
	}
	return left
}
