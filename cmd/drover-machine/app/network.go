// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/description"
	"cloudnative.tw/drover/internal/machine/edge"
	"cloudnative.tw/drover/internal/machine/edge/routes"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// guestAddress is the address of every guest, which only the edge of its machine knows: the pod's address is the machine's.
var guestAddress = netip.MustParsePrefix("10.0.2.15/24")

// probeSocket is the name, in the run folder, of the socket by which the program probes the guest of another one.
const probeSocket = "probe.sock"

// openNetwork opens the edge of a guest's network.
func openNetwork(ctx context.Context, c control.NetworkConfig, peers control.Switchboard) (supervisor.Network, error) {
	kernel, err := routes.Open()
	if err != nil {
		return nil, err
	}
	return edge.New(ctx, c, edge.Options{Routes: kernel, Peers: peers, Clock: clock.RealClock{}, Dial: edge.DialHost})
}

// openNetwork opens the edge of the guest's network, which has no other machines in it.
func (r *run) openNetwork(ctx context.Context) (supervisor.Network, error) {
	resolvers, domain, err := control.ReadResolvers()
	if err != nil && !errors.Is(err, control.ErrNoResolver) { // which a pod may want
		return nil, err
	}
	denied := r.options.nodeAddresses
	if len(denied) > 0 { // there is a node
		table, err := os.ReadFile("/proc/net/route")
		if err != nil {
			return nil, fmt.Errorf("finding the pod's gateway: %w", err)
		}
		denied = append(denied, gatewaysOf(string(table))...)
	}
	return openNetwork(ctx, control.NetworkConfig{
		MAC: launch.MACAddress(r.description.UUID), Address: guestAddress, Hostname: r.description.Name, Domain: domain, MTU: control.GuestMTU,
		Wanted: control.Wanted{Ports: r.ports(), Egress: control.Egress{Denied: denied, Resolvers: resolvers}},
	}, nil)
}

// gatewaysOf returns the gateways of the default routes in a table of the kernel's (proc_pid_net(5)). In many clusters they
// are the node, at an address that it has for its pods alone.
func gatewaysOf(table string) (all []netip.Prefix) {
	for line := range strings.Lines(table) {
		words := strings.Fields(line)
		if len(words) < 3 || words[1] != "00000000" {
			continue
		}
		var address [4]byte
		if number, err := strconv.ParseUint(words[2], 16, 32); err == nil && number > 0 {
			binary.NativeEndian.PutUint32(address[:], uint32(number))
			all = append(all, netip.PrefixFrom(netip.AddrFrom4(address), 32))
		}
	}
	return all
}

// parseNodeAddresses parses the value of the environment variable description.NodeAddresses. Without a node it is empty.
func parseNodeAddresses(text string) (all []netip.Prefix, err error) {
	if text == "" {
		return nil, nil
	}
	for one := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddr(one)
		if err != nil || address.Zone() != "" {
			return nil, fmt.Errorf("%s is %.200q: it must be IP addresses with commas between them", description.NodeAddresses, text)
		}
		address = address.Unmap()
		all = append(all, netip.PrefixFrom(address, address.BitLen()))
	}
	return all, nil
}

// ports returns the container's ports that lead to the guest.
func (r *run) ports() []control.Port {
	ports := make([]control.Port, len(r.description.Forwards))
	for i, f := range r.description.Forwards {
		ports[i] = control.Port{Protocol: f.Protocol, HostPort: uint16(f.HostPort), Port: uint16(f.Port)} //nolint:gosec // ports
	}
	return ports
}

// openPorts opens the container's ports that lead to the guest.
func (r *run) openPorts(ctx context.Context) error {
	sockets := map[control.Port]*os.File{}
	defer func() { control.CloseFiles(slices.Collect(maps.Values(sockets))...) }()
	for i, port := range r.ports() {
		socket, _, err := control.Listen(ctx, port)
		if err != nil {
			return fmt.Errorf("forwards[%d]: %w", i, err)
		}
		sockets[port] = socket
	}
	return r.supervisor.Edge().GiveSockets(ctx, control.Revision{}, sockets)
}

// serveProbes serves the program that probes the guest.
func (r *run) serveProbes(ctx context.Context) error {
	socket, err := r.machine.Listen(probeSocket)
	if err != nil {
		return err
	}
	listener, err := net.FileListener(socket)
	if err = errors.Join(err, socket.Close()); err != nil {
		return err
	}
	go func() {
		if err := control.NewProbeServer(ctx, r.supervisor).Serve(listener); err != nil && ctx.Err() == nil {
			r.log.Error(err, "Guest cannot be probed any more")
		}
	}()
	return nil
}

// isForwarded reports whether a TCP port of the guest is one of the container's.
func (r *run) isForwarded(port int32) bool {
	return slices.ContainsFunc(r.description.Forwards, func(f description.Forward) bool { return f.Protocol == control.TCP && f.Port == port })
}

// controlled is the machine as others control it.
type controlled struct {
	*supervisor.Supervisor

	run *run
}

// Probe implements control.Machine. A kubelet's probe reaches the same ports.
func (c controlled) Probe(ctx context.Context, port int32) error {
	if c.HasStarted() && !c.IsStopping() && !c.run.isForwarded(port) {
		return failure.ErrUnknown
	}
	return c.Supervisor.Probe(ctx, port)
}

// probePort returns nil once the guest of the program that runs the machine has answered at a port.
func (r *run) probePort(ctx context.Context, port int32) error {
	if !r.isForwarded(port) {
		return fmt.Errorf("no TCP port %d is in forwards", port)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return r.machine.DialSocket(ctx, probeSocket) }
	err := control.NewLocalClient("", dial).Probe(ctx, port)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("port %d of the guest took no connection: %w", port, ctx.Err())
	case errors.Is(err, failure.ErrUnreachable):
		return failure.ErrNoAnswer // the machine serves probes once its guest runs
	}
	return err
}
