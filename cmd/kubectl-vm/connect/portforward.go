// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// portForwardOptions are the flags of port-forward.
type portForwardOptions struct {
	*kit.Options
	address string
	stdio   bool
}

// NewPortForwardCommand returns the command port-forward.
func NewPortForwardCommand(o *kit.Options) *cobra.Command {
	p := &portForwardOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:     "port-forward NAME [LOCAL:]REMOTE...",
		Short:   "Forward local ports to TCP ports of a VM",
		Long:    "Forward local ports to TCP ports of a VM until Ctrl-C.\nOf a machine in a pod, only TCP ports of spec.ports can be forwarded.",
		Example: o.FormatExamples("port-forward web 8080:80"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("give NAME and at least one [LOCAL:]REMOTE port")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return p.forwardPorts(cmd.Context(), args[0], args[1:]) },
	})
	cmd.Flags().StringVar(&p.address, "address", "127.0.0.1", "local address to listen on")
	cmd.Flags().BoolVar(&p.stdio, "stdio", false, "connect standard input and output to one port, as for ssh's ProxyCommand")
	return cmd
}

func (p *portForwardOptions) forwardPorts(ctx context.Context, name string, ports []string) error {
	forwards := make([]streams.Forward, 0, len(ports))
	for _, text := range ports {
		forward, err := streams.ParseForward(text)
		if err != nil {
			return err
		}
		forwards = append(forwards, forward)
	}
	if p.stdio && len(forwards) != 1 {
		return fmt.Errorf("--stdio takes one port, but %d were given", len(forwards))
	}
	target, err := vms.FindTarget(ctx, p.Options, name, streamsapi.PortForward)
	if err != nil {
		return err
	}
	if err := checkPorts(p.Program, target, forwards); err != nil {
		return err
	}
	forwarder := streams.PortForwarder{Client: target.Client, Namespace: target.Namespace, Name: target.Name, Address: p.address, Notes: p.ErrOut}
	if p.stdio {
		return target.WrapError(ctx, forwarder.Connect(ctx, forwards[0].Remote, stdio{p.In, p.Out}))
	}
	if err := forwarder.Run(ctx, forwards); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// checkPorts returns an error if a port of a pod cannot be reached: only the TCP ports in the pod's spec can. It also
// returns an error if the VM could not be read.
func checkPorts(program string, target vms.Target, forwards []streams.Forward) error {
	if target.VMErr != nil || target.VM.Status.Driver != vms.DriverPod {
		return target.VMErr
	}
	for _, f := range forwards {
		isListed := func(p api.Port) bool { return p.Port == int32(f.Remote) && p.Protocol != api.ProtocolUDP }
		if !slices.ContainsFunc(target.VM.Spec.Ports, isListed) {
			name := target.VM.Name
			return fmt.Errorf("port %d: VM %s does not list this TCP port in spec.ports; add it with %s port add %s %d", f.Remote, name, program, name, f.Remote)
		}
	}
	return nil
}

// stdio is standard input and output as one connection. Both stay open until the program ends. If
// they were closed before, ssh would end, and with ssh this program, before it can print an error.
type stdio struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer.
func (stdio) Close() error { return nil }
