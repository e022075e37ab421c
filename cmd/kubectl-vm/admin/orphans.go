// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// serversOptions has the flags and the client that the verbs orphans and retained share.
type serversOptions struct {
	*kit.Options
	output       kit.JSONFlag
	yes, wait    bool
	timeout      time.Duration
	skipsWarning bool            // about engines that do not answer: after the first answer, and for completion
	client       *streams.Client // nil before the first request, and after a failed request
}

// NewOrphansCommand returns the commands orphans list and orphans delete.
func NewOrphansCommand(o *kit.Options) *cobra.Command {
	s := &serversOptions{Options: o}
	remove := &cobra.Command{
		Use: "delete UID...", Aliases: []string{"rm"}, Short: "Have Drover remove servers that no VM owns",
		Long: "Approve, after asking, that servers without a VM are removed with their disks, and wait\n" +
			"until the controller has removed them. It first reads the engine and the API live twice,\n" +
			"--orphan-grace apart, so this takes a minute or two. A server that has a VM by then\n" +
			"stays. You need the right to write ConfigMap " + streamsapi.OrphanApprovalsName + " in kube-system.",
		Args: requireUIDs, Example: o.FormatExamples("orphans delete 0960e1bf-5b0c-4f0e-9c52-2a0b1c3d4e5f"),
		ValidArgsFunction: s.completeOrphans,
		RunE:              func(cmd *cobra.Command, args []string) error { return s.removeOrphans(cmd.Context(), args) },
	}
	f := remove.Flags()
	f.BoolVarP(&s.yes, "yes", "y", false, "do not ask")
	f.BoolVar(&s.wait, "wait", true, "wait until they are removed")
	f.DurationVar(&s.timeout, "timeout", 5*time.Minute, "how long to wait")
	return kit.NewVerbGroup(&cobra.Command{
		Use: "orphans", GroupID: kit.GroupAdmin,
		Short: "Show and remove servers that no VM owns",
		Long: "Show and remove servers that no VM owns. Drover removes them by itself after a while,\n" +
			"unless it only reports them, or suspiciously many look orphaned. For administrators:\n" +
			"it needs the right to list virtualmachines/servers in all namespaces.",
	}, s.newListCommand("Show the servers that no VM owns", "orphans list", s.listOrphans), remove)
}

// NewRetainedCommand returns the command retained list.
func NewRetainedCommand(o *kit.Options) *cobra.Command {
	s := &serversOptions{Options: o}
	return kit.NewVerbGroup(&cobra.Command{
		Use: "retained", GroupID: kit.GroupAdmin,
		Short: "Show servers that were released",
		Long: "Show the servers that were released when their VM was deleted with deletionPolicy Retain.\n" +
			"They go on running, and no controller touches them any more: remove them on the engine's host,\n" +
			"by \"drover retained delete\" or as docs/kubectl-vm.md says.",
	}, s.newListCommand("Show the servers that were released", "retained list", s.listRetained))
}

// newListCommand returns a verb that lists servers.
func (s *serversOptions) newListCommand(short, example string, listServers func(ctx context.Context) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: "list", Short: short, Args: kit.RefuseArgs, Example: s.FormatExamples(example),
		RunE: func(cmd *cobra.Command, _ []string) error { return listServers(cmd.Context()) },
	}
	s.output.AddFlag(cmd, "output format: json")
	return cmd
}

// requireUIDs checks that at least one server is named.
func requireUIDs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("no UID is given: %s list shows them", cmd.Parent().CommandPath())
	}
	return nil
}

func (s *serversOptions) listOrphans(ctx context.Context) error {
	snapshot, err := s.readServersAndOwners(ctx)
	if err != nil {
		return err
	}
	return s.printServers(snapshot.Orphans(), servers.ByUID, servers.NoOrphans)
}

func (s *serversOptions) listRetained(ctx context.Context) error {
	snapshot, err := s.readServers(ctx)
	if err != nil {
		return err
	}
	return s.printServers(snapshot.Retained(), servers.ByID, servers.NoRetained)
}

func (s *serversOptions) printServers(all []servers.Server, key servers.Key, none string) error {
	if err := s.output.Check(); err != nil {
		return err
	}
	if s.output.IsSet() {
		return servers.PrintJSON(s.Out, all)
	}
	return servers.PrintTable(s.Out, all, key, s.Clock.Now(), none)
}

func (s *serversOptions) removeOrphans(ctx context.Context, uids []string) error {
	if s.timeout <= 0 {
		return fmt.Errorf("--timeout is %s: it must be positive", s.timeout)
	}
	remover := servers.Remover{Read: s.readServersAndOwners, Out: s.Out, Clock: s.Clock, Program: s.Program}
	if !s.yes {
		remover.Confirm = s.AskUser
	}
	if s.wait {
		remover.Timeout = s.timeout
	}
	return remover.Remove(ctx, uids)
}

// readServersAndOwners reads the servers of the engines, and after that the VMs, live from the API. So the owner of a new
// server is never missing.
func (s *serversOptions) readServersAndOwners(ctx context.Context) (*servers.Snapshot, error) {
	snapshot, err := s.readServers(ctx)
	if err != nil {
		return nil, err
	}
	if snapshot.Owners, err = vms.ReadUIDs(ctx, s.Options); err != nil {
		return nil, err
	}
	snapshot.Core, err = s.Core() // with which a Remover approves removals
	return snapshot, err
}

// maxServers is the largest answer of a controller, in bytes.
const maxServers = 64 << 20

// readServers asks a controller for all servers.
func (s *serversOptions) readServers(ctx context.Context) (*servers.Snapshot, error) {
	body, err := s.openServers(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(body, maxServers)) // reads until EOF, so that the connection can be reused
	if err != nil {
		return nil, fmt.Errorf("read the servers: %w", err)
	}
	var list streamsapi.ServerList
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("read the servers: %w", err)
	}
	return s.snapshotOf(list), nil
}

// openServers requests the list of servers. It keeps the client, and so its connection, for the next request.
// After a failure it drops the client, since the address of streams may have changed.
func (s *serversOptions) openServers(ctx context.Context) (io.ReadCloser, error) {
	if s.client == nil {
		config, err := s.RESTConfig()
		if err != nil {
			return nil, err
		}
		if s.client, err = streams.Discover(ctx, config); err != nil {
			return nil, err
		}
	}
	body, err := s.client.GetPath(ctx, streamsapi.ServersPath)
	if err != nil {
		s.client.Close()
		s.client = nil
	}
	return body, streams.Cause(err)
}

func (s *serversOptions) snapshotOf(list streamsapi.ServerList) *servers.Snapshot {
	snapshot := &servers.Snapshot{}
	for _, d := range list.Drivers {
		snapshot.Drivers = append(snapshot.Drivers, d.Driver)
		if d.Error != "" {
			if !s.skipsWarning {
				_, _ = fmt.Fprintf(s.ErrOut, "warning: the engine of driver %s does not answer, so its servers are missing here: %s\n", printable.Line(d.Driver), printable.Line(d.Error))
			}
			continue
		}
		snapshot.Answered = append(snapshot.Answered, servers.Engine{Driver: d.Driver, ID: d.EngineID})
		for _, server := range d.Servers {
			snapshot.Servers = append(snapshot.Servers, servers.Server{Driver: d.Driver, EngineID: d.EngineID, Server: server})
		}
	}
	s.skipsWarning = true
	return snapshot
}

// completeOrphans proposes the UIDs of orphans.
func (s *serversOptions) completeOrphans(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := kit.NewCompletionContext(cmd)
	defer cancel()
	s.skipsWarning = true
	snapshot, err := s.readServersAndOwners(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var all []string
	for _, server := range snapshot.Orphans() {
		if uid := string(server.UID); !slices.Contains(args, uid) {
			all = append(all, printable.Line(uid)+"\t"+printable.Line(server.Namespace+"/"+server.Name))
		}
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}
