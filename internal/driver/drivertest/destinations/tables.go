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

// outward has the result of each protocol and destination: who answers, or test/prober's word for another result. Rows
// without a text for a driver are not tried there.
var outward = []struct {
	// to is an address, or some of those that places returns.
	protocol, to string
	// qemu is the result in a machine, docker in a container, and pod in the machine of a pod, where that differs.
	qemu, docker, pod string
	// byPolicy is for machines with an egress that differs: deny or denied.
	byPolicy map[string]string
	// hasPeers is set for rows about other guests, which the gate does not boot.
	hasPeers bool
}{
	// The host, which only containers reach. The edge drops packets to loopback addresses.
	{protocol: "tcp", to: "loopback", qemu: "silent"},
	{protocol: "udp", to: "loopback", qemu: "silent"},
	{protocol: "tcp", to: "own", qemu: "refused", docker: theHost},
	{protocol: "udp", to: "own", qemu: "unreachable", docker: theHost},
	{protocol: "tcp", to: "everywhere", qemu: "refused", docker: theHost},
	{protocol: "udp", to: "everywhere", qemu: "unreachable"},
	{protocol: "tcp", to: "own6", qemu: "unreachable"},
	{protocol: "udp", to: "own6", qemu: "unreachable"},
	{protocol: "ping", to: "own host", qemu: "silent", docker: "echo"},
	{protocol: "tcp", to: "published", qemu: "refused"},
	{protocol: "udp", to: "published", qemu: "unreachable"},
	{protocol: "ping", to: "pod host", pod: "silent"},
	// The gateway, which is the edge of a machine, and the host of a container.
	{protocol: "ping", to: "gateway host", qemu: "echo", docker: "echo"},
	{protocol: "tcp", to: "gateway", qemu: "refused", docker: theHost},
	{protocol: "udp", to: "gateway", qemu: "unreachable", docker: theHost},
	{protocol: "tcp", to: "gateway's other ports", qemu: "refused"},
	{protocol: "udp", to: "gateway's other ports", qemu: "unreachable"},
	// Addresses that no host has, or more than one.
	{protocol: "tcp", to: "unused", qemu: "refused"},
	{protocol: "udp", to: "unused", qemu: "unreachable"},
	{protocol: "ping", to: "unused host", qemu: "silent"},
	{protocol: "tcp", to: "169.254.169.254:80", qemu: "refused"},
	{protocol: "udp", to: "169.254.169.254:80", qemu: "unreachable"},
	{protocol: "tcp", to: "240.0.0.1:80", qemu: "refused"},
	{protocol: "udp", to: "240.0.0.1:80", qemu: "unreachable"},
	{protocol: "udp", to: "224.0.0.1:80", qemu: "silent"},
	{protocol: "udp", to: "255.255.255.255:80", qemu: "unreachable"},
	// Another host.
	{protocol: "tcp", to: "outside", qemu: "outside", docker: "outside", byPolicy: map[string]string{"deny": "refused", "denied": "refused"}},
	{protocol: "udp", to: "outside", qemu: "outside", docker: "outside", byPolicy: map[string]string{"deny": "unreachable", "denied": "unreachable"}},
	{protocol: "tcp", to: "outside's closed port", qemu: "refused", docker: "refused"},
	{protocol: "ping", to: "outside host", docker: "echo", pod: "echo"}, // a machine of the host depends on a setting: package edge
	// Other guests.
	{protocol: "tcp", to: "a", qemu: "a", docker: "a"},
	{protocol: "tcp", to: "b", qemu: "b", docker: "b", hasPeers: true},
	{protocol: "udp", to: "b", qemu: "b", docker: "b", hasPeers: true},
	{protocol: "ping", to: "b host", qemu: "echo", docker: "echo", hasPeers: true},
	{protocol: "tcp", to: "b's closed port", qemu: "refused", docker: "refused", hasPeers: true},
	{protocol: "udp", to: "b's closed port", qemu: "silent", docker: "refused", hasPeers: true},
	{protocol: "tcp", to: "c", qemu: "refused", docker: "c", hasPeers: true},
	{protocol: "udp", to: "c", qemu: "unreachable", docker: "c", hasPeers: true},
	// Names.
	{protocol: "tcp", to: "b:80", qemu: "b", hasPeers: true},
	{protocol: "udp", to: "b.ns:80", qemu: "b", hasPeers: true},
	{protocol: "tcp", to: "b.ns.drover.internal:80", qemu: "b", hasPeers: true},
	{protocol: "name", to: "c.other.drover.internal", qemu: "no such name", hasPeers: true},
	{protocol: "name", to: "nobody", qemu: "no such name"},
	{protocol: "name", to: "nobody.drover.internal", qemu: "no such name"},
	{protocol: "name", to: "service.team", pod: "no answer for the name"}, // of the pod's resolvers
	{protocol: "name", to: "outside.test", pod: "no answer for the name", byPolicy: map[string]string{"deny": "no answer for the name"}},
}

// inward is who answers at ports of the host, or of the pod.
var inward = []struct {
	protocol, host, port string
	want                 string
}{
	{"tcp", "127.0.0.1", "http", "a"},
	{"tcp", "::1", "http", "a"},
	{"tcp", "own", "http", "a"},
	{"tcp", "link", "http", "a"},
	{"udp", "127.0.0.1", "packets", "a"},
	{"udp", "::1", "packets", "a"},
	{"udp", "own", "packets", "a"},
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

// ports returns the ports of a guest's spec, those first that pods have too.
func (w *world) ports(t *testing.T) []driver.Port {
	t.Helper()
	return []driver.Port{
		{Name: "http", Protocol: "TCP", Port: 80},
		{Name: "packets", Protocol: "UDP", Port: 80},
		{Name: "closed", Protocol: "TCP", Port: 81},
		{Name: "local", Protocol: "TCP", Port: 80, HostIP: "127.0.0.2"},
		{Name: "low", Protocol: "TCP", Port: 80, HostPort: freeLowPort(t), HostIP: "127.0.0.1"},
	}
}

// freeLowPort returns a port that only root can open.
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

// hostPort returns the address of a port of the host by its name, at a host's address, or that of a port of the pod.
// Docker may choose another port for all addresses of IPv6 than for those of IPv4.
func (g *guest) hostPort(t testing.TB, name, host string) string {
	t.Helper()
	if g.PreparePod != nil {
		port := map[string]string{"http": "80", "packets": "80", "closed": "81", "unlisted": "82"}[name]
		return net.JoinHostPort(g.server.Addresses[0], port)
	}
	want := g.spec.Ports[slices.IndexFunc(g.spec.Ports, func(p driver.Port) bool { return p.Name == name })]
	everywhere := "0.0.0.0"
	if strings.Contains(host, ":") {
		everywhere = "::"
	}
	for _, open := range g.server.Ports {
		if open.Protocol == want.Protocol && open.Port == want.Port && (open.HostIP == want.HostIP || want.HostIP == "" && open.HostIP == everywhere) {
			return net.JoinHostPort(host, fmt.Sprint(open.HostPort))
		}
	}
	t.Fatalf("port %s is not among %+v", name, g.server.Ports)
	return ""
}

// tryWith tries both tables with a guest under a policy.
func (w *world) tryWith(t *testing.T, policy string, egress Egress) {
	t.Helper()
	d := w.Open(t, w.registry, egress)
	_, err := d.Watch(t.Context())
	assert.NoError(t, err)
	a := w.newGuest(t, d, "ns", "a")
	peers := map[string]*guest{}
	if hasPeers := policy == "" && w.PreparePod == nil && (tier.IsFull() || !w.IsMachine); hasPeers {
		peers["b"], peers["c"] = w.newGuest(t, d, "ns", "b"), w.newGuest(t, d, "other", "c")
	}
	if w.IsMachine {
		a.routeLoopback(t)
		assert.Eventually(t, "the names of machines are known", func(t testing.TB) error {
			if got := a.try(t, target{Protocol: "name", Address: "nobody"})[0]; got != "no such name" {
				t.Error(got)
			}
			return nil
		})
	}
	a.tryOutward(t, policy, peers)
	a.tryInward(t)
}

// routeLoopback has the guest send packets to loopback addresses to its gateway, as a hostile one can.
func (g *guest) routeLoopback(t *testing.T) {
	t.Helper()
	got := g.run(t, "", "sh", "-ec", "echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; ip addr del 127.0.0.1/8 dev lo; ip route add 127.0.0.0/8 via "+g.gateway+"; ip route get 127.0.0.1")
	assert.Contains(t, "the guest's route to loopback", got, "via "+g.gateway)
}

func (g *guest) tryOutward(t *testing.T, policy string, peers map[string]*guest) {
	t.Helper()
	places := g.places(t, peers)
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
		if want == "" || row.hasPeers && len(peers) == 0 {
			continue
		}
		to, isPlace := places[row.to]
		if !isPlace {
			to = []string{row.to}
		}
		for _, to := range to {
			targets, wants = append(targets, target{Protocol: row.protocol, Address: to, MaySilent: want == "silent"}), append(wants, want)
		}
	}
	results := g.try(t, targets...)
	for i, got := range results {
		assert.Equal(t, targets[i].Protocol+" from the guest to "+targets[i].Address, got, wants[i])
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	assert.True(t, !g.IsMachine || len(g.heard) == 0, "the host has heard %q of a guest", g.heard)
	t.Logf("tried %d ways out", len(results))
}

// places are destinations that only a run knows.
func (g *guest) places(t *testing.T, peers map[string]*guest) map[string][]string {
	t.Helper()
	withPort := func(port string, hosts ...string) (all []string) {
		for _, host := range hosts {
			all = append(all, net.JoinHostPort(host, port))
		}
		return all
	}
	last := netip.MustParseAddr(g.gateway).As4()
	last[3] = 254
	unused := netip.AddrFrom4(last).String()
	places := map[string][]string{
		"loopback": withPort(g.port, "127.0.0.1", "127.0.0.2", "127.255.255.254", "::ffff:127.0.0.1"), "own": g.own, "everywhere": withPort(g.port, g.hosts...), "own6": g.own6, "own host": g.hosts,
		"gateway": withPort(g.port, g.gateway), "gateway host": {g.gateway},
		"gateway's other ports": append(withPort("22", g.gateway), withPort("80", g.gateway)...),
		"unused":                append(withPort("80", unused), withPort(g.port, unused)...), "unused host": {unused},
		"outside": withPort("80", g.outside), "outside host": {g.outside}, "outside's closed port": withPort("81", g.outside),
		"a": withPort("80", g.address),
	}
	if g.PreparePod != nil {
		pod := g.server.Addresses[0]
		places["pod host"] = []string{pod}
		gateway := netip.MustParseAddr(pod).Prev().String() // the node, in the pod's network
		places["own host"], places["everywhere"] = append(places["own host"], gateway), append(places["everywhere"], net.JoinHostPort(gateway, g.port))
		for _, port := range []string{"80", "81", "82", "7443"} { // served, without a server, not in the spec, and of the control channel
			places["published"] = append(places["published"], net.JoinHostPort(pod, port))
		}
		return places
	}
	published := []*guest{g}
	for name, peer := range peers {
		places[name], places[name+" host"], places[name+"'s closed port"] = withPort("80", peer.address), []string{peer.address}, withPort("81", peer.address)
		published = append(published, peer)
	}
	for _, one := range published {
		for _, host := range g.hosts {
			places["published"] = append(places["published"], one.hostPort(t, "http", host))
		}
	}
	return places
}

func (g *guest) tryInward(t *testing.T) {
	t.Helper()
	fromHost, fromOutside := []string{g.prober}, []string{"ip", "netns", "exec", g.network, g.prober}
	for _, row := range inward {
		hosts, from := []string{row.host}, fromHost
		switch row.host {
		case "own":
			hosts = g.hosts
		case "link": // from the other host
			hosts, from = []string{g.link().String()}, fromOutside
		case "pod": // as well
			from = fromOutside
		}
		if (row.host == "pod") != (g.PreparePod != nil) {
			continue
		}
		var targets []target
		for _, host := range hosts {
			targets = append(targets, target{Protocol: row.protocol, Address: g.hostPort(t, row.port, host), Insists: row.want == "reset" && !g.IsMachine})
		}
		for i, got := range tryFrom(t, from, targets...) {
			assert.Equal(t, fmt.Sprintf("%s to port %s of the guest at %s", row.protocol, row.port, targets[i].Address), got, row.want)
		}
	}
}
