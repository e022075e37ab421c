// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// portForwardOptions are the flags of port-forward.
type portForwardOptions struct {
	connection
	address string
	stdio   bool
}

// NewPortForwardCommand returns the verb port-forward.
func NewPortForwardCommand(o *Options) *cobra.Command {
	p := &portForwardOptions{connection: connection{Options: o}}
	cmd := p.newConnectCommand(&cobra.Command{
		Use:     "port-forward NAME [LOCAL:]REMOTE...",
		Short:   "Forward local ports to TCP ports of a VM",
		Long:    "Forward local ports to TCP ports of a VM until Ctrl-C.\nOf a machine in a pod, only TCP ports of spec.ports can be forwarded.",
		Example: o.formatExamples("port-forward web 8080:80"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("give NAME and at least one [LOCAL:]REMOTE port")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args[0], args[1:]) },
	})
	cmd.Flags().StringVar(&p.address, "address", "127.0.0.1", "local address to listen on")
	cmd.Flags().BoolVar(&p.stdio, "stdio", false, "connect standard input and output to one port, as for ssh's ProxyCommand")
	return cmd
}

func (p *portForwardOptions) run(ctx context.Context, name string, ports []string) error {
	forwards := make([]streams.Forward, 0, len(ports))
	for _, text := range ports {
		forward, err := streams.ParseForward(text)
		if err != nil {
			return err
		}
		forwards = append(forwards, forward)
	}
	if p.stdio && len(forwards) != 1 {
		return fmt.Errorf("--stdio takes one port, and there are %d", len(forwards))
	}
	at, err := p.findStream(ctx, name, streamsapi.PortForward)
	if err != nil {
		return err
	}
	if err := p.checkPorts(at, forwards); err != nil {
		return err
	}
	forwarder := streams.PortForwarder{Client: at.client, Namespace: at.namespace, Name: at.name, Address: p.address, Notes: p.ErrOut}
	if p.stdio {
		return at.describe(ctx, forwarder.Connect(ctx, forwards[0].Remote, stdio{p.In, p.Out}))
	}
	if err := forwarder.Run(ctx, forwards); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// checkPorts reports what would keep every connection from being made.
func (p *portForwardOptions) checkPorts(stream place, forwards []streams.Forward) error {
	if stream.vmErr != nil || stream.vm.Status.Driver != driverQEMU && stream.vm.Status.Driver != driverPod {
		return stream.vmErr
	}
	for _, f := range forwards {
		if err := p.checkTCPPort(stream.vm, int32(f.Remote)); err != nil {
			return err
		}
	}
	return nil
}

// stdio is standard input and output as one connection. Both stay open until the program ends,
// because ssh ends with its connection, and the program with ssh, before an error is printed.
type stdio struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer.
func (stdio) Close() error { return nil }
