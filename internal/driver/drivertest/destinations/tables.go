// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package destinations

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/tier"
)

// outward has the expected result for each protocol and destination: the name that the answer contains, or the word of
// test/prober for a failure. A row is skipped for a driver whose column is empty.
var outward = []struct {
	// destination is an address, or a key of the map that destinations returns.
	protocol, destination string
	// qemu is the result in a machine, docker in a container, and pod in a machine of a pod if it differs from qemu.
	qemu, docker, pod string
	// byPolicy has the results that differ in machines under an egress policy: deny or denied.
	byPolicy map[string]string
	// needsPeers is set for rows about other guests, which the gate does not boot.
	needsPeers bool
}{
	// This host, which only containers reach. A machine's edge drops packets to loopback addresses.
	{protocol: "tcp", destination: "loopback", qemu: "silent"},
	{protocol: "udp", destination: "loopback", qemu: "silent"},
	{protocol: "tcp", destination: "separate listeners", qemu: "refused", docker: theHost},
	{protocol: "udp", destination: "separate listeners", qemu: "unreachable", docker: theHost},
	{protocol: "tcp", destination: "common listener", qemu: "refused", docker: theHost},
	{protocol: "udp", destination: "common listener", qemu: "unreachable"},
	{protocol: "tcp", destination: "common listener by IPv6", qemu: "unreachable"},
	{protocol: "udp", destination: "common listener by IPv6", qemu: "unreachable"},
	{protocol: "ping", destination: "this host", qemu: "silent", docker: "echo"},
	{protocol: "tcp", destination: "published", qemu: "refused"},
	{protocol: "udp", destination: "published", qemu: "unreachable"},
	{protocol: "ping", destination: "pod host", pod: "silent"},
	// The gateway. A machine's gateway is its edge, a container's is this host.
	{protocol: "ping", destination: "gateway host", qemu: "echo", docker: "echo"},
	{protocol: "tcp", destination: "gateway", qemu: "refused", docker: theHost},
	{protocol: "udp", destination: "gateway", qemu: "unreachable", docker: theHost},
	{protocol: "tcp", destination: "gateway's other ports", qemu: "refused"},
	{protocol: "udp", destination: "gateway's other ports", qemu: "unreachable"},
	// Unused addresses, and multicast and broadcast.
	{protocol: "tcp", destination: "unused", qemu: "refused"},
	{protocol: "udp", destination: "unused", qemu: "unreachable"},
	{protocol: "ping", destination: "unused host", qemu: "silent"},
	{protocol: "tcp", destination: "169.254.169.254:80", qemu: "refused"},
	{protocol: "udp", destination: "169.254.169.254:80", qemu: "unreachable"},
	{protocol: "tcp", destination: "240.0.0.1:80", qemu: "refused"},
	{protocol: "udp", destination: "240.0.0.1:80", qemu: "unreachable"},
	{protocol: "udp", destination: "224.0.0.1:80", qemu: "silent"},
	{protocol: "udp", destination: "255.255.255.255:80", qemu: "unreachable"},
	// Another host.
	{protocol: "tcp", destination: "outside", qemu: "outside", docker: "outside", byPolicy: map[string]string{"deny": "refused", "denied": "refused"}},
	{protocol: "udp", destination: "outside", qemu: "outside", docker: "outside", byPolicy: map[string]string{"deny": "unreachable", "denied": "unreachable"}},
	{protocol: "tcp", destination: "outside's closed port", qemu: "refused", docker: "refused"},
	{protocol: "ping", destination: "outside host", docker: "echo", pod: "echo"}, // of a machine it depends on a sysctl: see package edge
	// Other guests.
	{protocol: "tcp", destination: "a", qemu: "a", docker: "a"},
	{protocol: "tcp", destination: "b", qemu: "b", docker: "b", needsPeers: true},
	{protocol: "udp", destination: "b", qemu: "b", docker: "b", needsPeers: true},
	{protocol: "ping", destination: "b host", qemu: "echo", docker: "echo", needsPeers: true},
	{protocol: "tcp", destination: "b's closed port", qemu: "refused", docker: "refused", needsPeers: true},
	{protocol: "udp", destination: "b's closed port", qemu: "silent", docker: "refused", needsPeers: true},
	{protocol: "tcp", destination: "c", qemu: "refused", docker: "c", needsPeers: true},
	{protocol: "udp", destination: "c", qemu: "unreachable", docker: "c", needsPeers: true},
	// Names.
	{protocol: "tcp", destination: "b:80", qemu: "b", needsPeers: true},
	{protocol: "udp", destination: "b.ns:80", qemu: "b", needsPeers: true},
	{protocol: "tcp", destination: "b.ns.drover.internal:80", qemu: "b", needsPeers: true},
	{protocol: "name", destination: "c.other.drover.internal", qemu: "no such name", needsPeers: true},
	{protocol: "name", destination: "nobody", qemu: "no such name"},
	{protocol: "name", destination: "nobody.drover.internal", qemu: "no such name"},
	{protocol: "name", destination: "service.team", pod: "no answer for the name"}, // from the pod's resolvers
	{protocol: "name", destination: "outside.test", pod: "no answer for the name", byPolicy: map[string]string{"deny": "no answer for the name"}},
}

// inward has the expected answers at ports of this host or of the pod. testInward explains hosts that are not addresses.
var inward = []struct {
	protocol, host, port string
	want                 string
}{
	{"tcp", "127.0.0.1", "http", "a"},
	{"tcp", "::1", "http", "a"},
	{"tcp", "this host", "http", "a"},
	{"tcp", "link", "http", "a"},
	{"udp", "127.0.0.1", "packets", "a"},
	{"udp", "::1", "packets", "a"},
	{"udp", "this host", "packets", "a"},
	{"udp", "link", "packets", "a"},
	{"tcp", "127.0.0.1", "low", "a"},
	{"tcp", "127.0.0.1", "closed", "reset"},
	{"tcp", "127.0.0.2", "local", "a"},
	{"tcp", "127.0.0.1", "local", "refused"},
	{"tcp", "link", "local", "refused"},
	{"tcp", "pod", "http", "a"},
	{"udp", "pod", "packets", "a"},
	{"tcp", "pod", "closed", "reset"},
	{"tcp", "pod", "unlisted", "refused"},
	{"udp", "pod", "unlisted", "refused"},
}

// newPorts returns the ports of a guest's spec. Pods have only the first three.
func newPorts(t *testing.T) []driver.Port {
	t.Helper()
	return []driver.Port{
		{Name: "http", Protocol: "TCP", Port: 80},
		{Name: "packets", Protocol: "UDP", Port: 80},
		{Name: "closed", Protocol: "TCP", Port: 81},
		{Name: "local", Protocol: "TCP", Port: 80, HostIP: "127.0.0.2"},
		{Name: "low", Protocol: "TCP", Port: 80, HostPort: freeLowPort(t), HostIP: "127.0.0.1"},
	}
}

// freeLowPort returns a free port in the range that only root can open.
func freeLowPort(t *testing.T) int32 {
	t.Helper()
	for port := int32(1023); port > 512; port-- {
		if listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			assert.NoError(t, listener.Close())
			return port
		}
	}
	t.Fatal("no low port is free")
	return 0
}

// portAddress returns the address and port at which others reach the named port of the guest: at an address of this host,
// or at the pod's address. Docker may publish a port under different numbers for IPv4 and for IPv6.
func (g *guest) portAddress(t testing.TB, name, host string) string {
	t.Helper()
	if g.PreparePod != nil {
		port := map[string]string{"http": "80", "packets": "80", "closed": "81", "unlisted": "82"}[name]
		return net.JoinHostPort(g.server.Addresses[0], port)
	}
	want := g.spec.Ports[slices.IndexFunc(g.spec.Ports, func(p driver.Port) bool { return p.Name == name })]
	allAddresses := "0.0.0.0"
	if strings.Contains(host, ":") {
		allAddresses = "::"
	}
	for _, open := range g.server.Ports {
		if open.Protocol == want.Protocol && open.Port == want.Port && (open.HostIP == want.HostIP || (want.HostIP == "" && open.HostIP == allAddresses)) {
			return net.JoinHostPort(host, fmt.Sprint(open.HostPort))
		}
	}
	t.Fatalf("the guest's port %s is not among the published ports %+v", name, g.server.Ports)
	return ""
}

// testPolicy boots a guest under an egress policy, and checks both tables.
func (b *testbed) testPolicy(t *testing.T, policy string, egress Egress) {
	t.Helper()
	d := b.Open(t, b.registry, egress)
	_, err := d.Watch(t.Context())
	assert.NoError(t, err)
	a := b.newGuest(t, d, "ns", "a")
	peers := map[string]*guest{}
	if policy == "" && b.PreparePod == nil && (tier.IsFull() || !b.IsMachine) {
		peers["b"], peers["c"] = b.newGuest(t, d, "ns", "b"), b.newGuest(t, d, "other", "c")
	}
	if b.IsMachine {
		a.routeLoopback(t)
		assert.Eventually(t, "the resolver knows the names of machines", func(t testing.TB) error {
			if got := a.runProber(t, target{Protocol: "name", Address: "nobody"})[0]; got != "no such name" {
				t.Error("an unknown name resolves to:", got)
			}
			return nil
		})
	}
	a.testOutward(t, policy, peers)
	a.testInward(t)
}

// routeLoopback makes the guest route loopback addresses to its gateway, as a hostile guest can.
func (g *guest) routeLoopback(t *testing.T) {
	t.Helper()
	got := g.runCommand(t, "", "sh", "-ec", "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip addr del 127.0.0.1/8 dev lo; ip route add 127.0.0.0/8 via "+g.gateway+"; ip route get 127.0.0.1")
	assert.Contains(t, "the guest's route to loopback", got, "via "+g.gateway)
}

func (g *guest) testOutward(t *testing.T, policy string, peers map[string]*guest) {
	t.Helper()
	byName := g.destinations(t, peers)
	var targets []target
	var wants []string
	for _, row := range outward {
		want := cmp.Or(row.byPolicy[policy], row.qemu)
		switch {
		case !g.IsMachine:
			want = row.docker
		case g.PreparePod != nil:
			want = cmp.Or(row.pod, row.qemu)
		}
		if want == "" || (row.needsPeers && len(peers) == 0) {
			continue
		}
		addresses, ok := byName[row.destination]
		if !ok {
			addresses = []string{row.destination}
		}
		for _, address := range addresses {
			targets = append(targets, target{Protocol: row.protocol, Address: address, ExpectSilence: want == "silent"})
			wants = append(wants, want)
		}
	}
	results := g.runProber(t, targets...)
	for i, got := range results {
		assert.Equal(t, targets[i].Protocol+" from the guest to "+targets[i].Address, got, wants[i])
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	assert.True(t, !g.IsMachine || len(g.received) == 0, "this host has received %q from a guest", g.received)
	t.Logf("tried %d destinations", len(results))
}

// destinations returns the addresses for each destination of outward whose addresses differ from run to run.
func (g *guest) destinations(t *testing.T, peers map[string]*guest) map[string][]string {
	t.Helper()
	addPort := func(port string, hosts ...string) (all []string) {
		for _, host := range hosts {
			all = append(all, net.JoinHostPort(host, port))
		}
		return all
	}
	last := netip.MustParseAddr(g.gateway).As4()
	last[3] = 254
	unused := netip.AddrFrom4(last).String()
	all := map[string][]string{
		"loopback": addPort(g.commonPort, "127.0.0.1", "127.0.0.2", "127.255.255.254", "::ffff:127.0.0.1"), "separate listeners": g.separate, "common listener": addPort(g.commonPort, g.hosts...), "common listener by IPv6": g.common6, "this host": g.hosts,
		"gateway": addPort(g.commonPort, g.gateway), "gateway host": {g.gateway},
		"gateway's other ports": append(addPort("22", g.gateway), addPort("80", g.gateway)...),
		"unused":                append(addPort("80", unused), addPort(g.commonPort, unused)...), "unused host": {unused},
		"outside": addPort("80", g.outside), "outside host": {g.outside}, "outside's closed port": addPort("81", g.outside),
		"a": addPort("80", g.address),
	}
	if g.PreparePod != nil {
		pod := g.server.Addresses[0]
		all["pod host"] = []string{pod}
		gateway := netip.MustParseAddr(pod).Prev().String() // the node's address in the pod's network
		all["this host"], all["common listener"] = append(all["this host"], gateway), append(all["common listener"], net.JoinHostPort(gateway, g.commonPort))
		for _, port := range []string{"80", "81", "82", "7443"} { // open, closed, not in the spec, and the control channel's
			all["published"] = append(all["published"], net.JoinHostPort(pod, port))
		}
		return all
	}
	published := []*guest{g}
	for name, peer := range peers {
		all[name], all[name+" host"], all[name+"'s closed port"] = addPort("80", peer.address), []string{peer.address}, addPort("81", peer.address)
		published = append(published, peer)
	}
	for _, publisher := range published {
		for _, host := range g.hosts {
			all["published"] = append(all["published"], publisher.portAddress(t, "http", host))
		}
	}
	return all
}

func (g *guest) testInward(t *testing.T) {
	t.Helper()
	fromHost, fromOutside := []string{g.prober}, []string{"ip", "netns", "exec", g.network, g.prober}
	for _, row := range inward {
		hosts, prober := []string{row.host}, fromHost
		switch row.host {
		case "this host":
			hosts = g.hosts
		case "link": // this host's address in its network with the other host
			hosts, prober = []string{g.linkAddress().String()}, fromOutside
		case "pod":
			prober = fromOutside
		}
		if (row.host == "pod") != (g.PreparePod != nil) {
			continue
		}
		var targets []target
		for _, host := range hosts {
			targets = append(targets, target{Protocol: row.protocol, Address: g.portAddress(t, row.port, host), SendUntilReset: row.want == "reset" && !g.IsMachine})
		}
		for i, got := range runProber(t, prober, targets...) {
			assert.Equal(t, fmt.Sprintf("%s to port %s of the guest at %s", row.protocol, row.port, targets[i].Address), got, row.want)
		}
	}
}
