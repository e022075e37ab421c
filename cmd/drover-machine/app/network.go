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
	"cloudnative.tw/drover/internal/machine/supervisor"
)

// guestAddress is the address of every guest. It is not visible outside of the pod, where the machine has the pod's address.
var guestAddress = netip.MustParsePrefix("10.0.2.15/24")

// probeSocket is the name, in the run folder, of the socket to which "drover-machine probe" connects.
const probeSocket = "probe.sock"

// openNetwork opens the host's end of a guest's network.
func openNetwork(ctx context.Context, c control.NetworkConfig, peers control.Switchboard) (supervisor.Network, error) {
	kernel, err := routes.Open()
	if err != nil {
		return nil, err
	}
	return edge.New(ctx, c, edge.Options{Routes: kernel, Peers: peers, Clock: clock.RealClock{}, Dial: edge.DialHost})
}

// openNetwork opens the host's end of the guest's network, without links to other machines.
func (r *run) openNetwork(ctx context.Context) (supervisor.Network, error) {
	resolvers, domain, err := control.ReadResolvers()
	if err != nil && !errors.Is(err, control.ErrNoResolver) { // a pod may run without resolvers
		return nil, err
	}
	denied := r.options.nodeAddresses
	if len(denied) > 0 { // this is a pod
		table, err := os.ReadFile("/proc/net/route")
		if err != nil {
			return nil, fmt.Errorf("finding the pod's gateway: %w", err)
		}
		denied = append(denied, gatewaysOf(string(table))...)
	}
	mac, err := net.ParseMAC(r.description.MAC)
	if err != nil {
		return nil, err
	}
	return openNetwork(ctx, control.NetworkConfig{
		MAC: mac, Address: guestAddress, Hostname: r.description.Name, Domain: domain, MTU: control.GuestMTU,
		Wanted: control.Wanted{Ports: r.ports(), Egress: control.Egress{Denied: denied, Resolvers: resolvers}},
	}, nil)
}

// gatewaysOf returns the gateways of the default routes in /proc/net/route (proc_pid_net(5)). In many clusters the gateway
// is the node, at an address that only its pods use.
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

// parseNodeAddresses parses the environment variable description.NodeAddresses, which is empty outside of Kubernetes.
func parseNodeAddresses(text string) (all []netip.Prefix, err error) {
	if text == "" {
		return nil, nil
	}
	for field := range strings.SplitSeq(text, ",") {
		address, err := netip.ParseAddr(field)
		if err != nil || address.Zone() != "" {
			return nil, fmt.Errorf("%s is %.200q, and must be a comma-separated list of IP addresses", description.NodeAddresses, text)
		}
		address = address.Unmap()
		all = append(all, netip.PrefixFrom(address, address.BitLen()))
	}
	return all, nil
}

// ports returns the container's ports that are forwarded to the guest.
func (r *run) ports() []control.Port {
	ports := make([]control.Port, len(r.description.Forwards))
	for i, f := range r.description.Forwards {
		ports[i] = control.Port{Protocol: f.Protocol, HostPort: uint16(f.HostPort), Port: uint16(f.Port)} //nolint:gosec // ports
	}
	return ports
}

// openPorts opens the container's ports that are forwarded to the guest.
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

// serveProbes serves "drover-machine probe".
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
			r.log.Error(err, "Probe socket has failed, so the guest cannot be probed any more")
		}
	}()
	return nil
}

// isForwarded reports whether a port of the container leads to a TCP port of the guest.
func (r *run) isForwarded(port int32) bool {
	return slices.ContainsFunc(r.description.Forwards, func(f description.Forward) bool { return f.Protocol == control.TCP && f.Port == port })
}

// controlledMachine is the machine for clients of the control port.
type controlledMachine struct {
	*supervisor.Supervisor

	run *run
}

// Probe implements control.Machine. It refuses ports that are not forwarded, as a kubelet's probe could not reach them either.
func (c controlledMachine) Probe(ctx context.Context, port int32) error {
	if c.HasStarted() && !c.IsStopping() && !c.run.isForwarded(port) {
		return failure.ErrUnknown
	}
	return c.Supervisor.Probe(ctx, port)
}

// probePort asks the process that runs the machine to probe a port of the guest.
func (r *run) probePort(ctx context.Context, port int32) error {
	if !r.isForwarded(port) {
		return fmt.Errorf("forwards of the description lacks TCP port %d", port)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return r.machine.DialSocket(ctx, probeSocket) }
	err := control.NewLocalClient("", dial).Probe(ctx, port)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("port %d of the guest accepted no connection: %w", port, ctx.Err())
	case errors.Is(err, failure.ErrUnreachable):
		return failure.ErrNoAnswer // the guest does not run yet, so probes are not served
	}
	return err
}
