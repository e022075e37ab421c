// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

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
		Long:    "Forward local ports to TCP ports of a VM until Ctrl-C. Of a machine, these are the ports of spec.ports.",
		Example: "  kubectl vm port-forward web 8080:80",
		Args:    cobra.MinimumNArgs(2),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args[0], args[1:]) },
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
	client, namespace, err := p.connect(ctx)
	if err != nil {
		return err
	}
	forwarder := streams.PortForwarder{Client: client, Namespace: namespace, Name: name, Address: p.address, Notes: p.ErrOut}
	if p.stdio {
		return streamError(forwarder.Connect(ctx, forwards[0].Remote, stdio{p.In, p.Out}))
	}
	if err := forwarder.Run(ctx, forwards); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// stdio is standard input and output as one connection.
type stdio struct {
	io.Reader
	io.Writer
}

// Close implements io.Closer. Reading goes on until the program ends.
func (s stdio) Close() error {
	var errs []error
	if c, ok := s.Reader.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	if c, ok := s.Writer.(io.Closer); ok {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
