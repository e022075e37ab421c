// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// outsider is an outside address, whose connections tests route to their servers.
var outsider = netip.MustParseAddr("198.51.100.7")

// allRoutes lead outside, except the named ones.
type allRoutes map[netip.Addr]error

func (r allRoutes) CheckUnicast(to netip.Addr) error { return r[to] }

// world is an edge with a guest, which is a separate network stack.
type world struct {
	*Edge
	guest *guest
	// servers are the servers at outside addresses.
	servers map[string]string
}

func newWorld(t *testing.T, change func(*control.NetworkConfig, *Options)) *world {
	t.Helper()
	w := &world{servers: map[string]string{}}
	c := control.NetworkConfig{
		MAC: net.HardwareAddr{0x52, 0x54, 0, 0, 0, 9}, Address: netip.MustParsePrefix("10.213.0.9/16"), MTU: 1500,
		Hostname: "a", Domain: "ns." + control.InternalDomain, Wanted: control.Wanted{Egress: control.Egress{Resolvers: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}}},
	}
	o := Options{Routes: allRoutes{}, Clock: clock.RealClock{}, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		to, ok := w.servers[network[:3]+" "+address]
		if !ok {
			return nil, errors.New("nobody is there")
		}
		return (&net.Dialer{}).DialContext(ctx, network, to)
	}}
	if change != nil {
		change(&c, &o)
	}
	var err error
	w.Edge, err = New(context.WithoutCancel(t.Context()), c, o)
	assert.NoError(t, err)
	here, there := framework.ConnPair(t)
	ended := make(chan error, 1)
	go func() { ended <- w.Serve(context.WithoutCancel(t.Context()), here) }()
	w.guest = newGuest(t, there, c)
	t.Cleanup(func() {
		_ = there.Close()
		assert.NoError(t, <-ended)
	})
	return w
}

// serve answers connections to an address of the outside, each by handle.
func (w *world) serve(t *testing.T, address string, handle func(net.Conn)) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	w.servers["tcp "+address] = listener.Addr().String()
	go serveEach(listener, handle)
}

func serveEach(listener net.Listener, handle func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			handle(conn)
		}()
	}
}

func echo(conn net.Conn) { _, _ = io.Copy(conn, conn) }

// dial connects from the guest.
func (w *world) dial(t *testing.T, to netip.AddrPort) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return gonet.DialContextTCP(ctx, w.guest.stack, fullAddress(to), ipv4.ProtocolNumber)
}

// TestOutward checks that data arrives both ways, whole, and that each direction ends by itself.
func TestOutward(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const size = 4 << 20
	w.serve(t, outsider.String()+":80", func(conn net.Conn) {
		n, _ := io.Copy(io.Discard, conn) // until the guest has ended its direction
		_, _ = fmt.Fprintf(conn, "%d\n", n)
		_, _ = io.CopyN(conn, zeros{}, size)
	})
	conn, err := w.dial(t, netip.AddrPortFrom(outsider, 80))
	assert.NoError(t, err)
	_, err = io.CopyN(conn, zeros{}, size)
	assert.NoError(t, err)
	assert.NoError(t, conn.(*gonet.TCPConn).CloseWrite())
	got, err := io.ReadAll(conn)
	assert.NoError(t, err)
	want := fmt.Sprintf("%d\n", size)
	assert.True(t, len(got) == len(want)+size && string(got[:len(want)]) == want, "the guest got %d bytes, %.20q, want %q and %d bytes", len(got), got, want, size)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestManyDials checks that a guest that constantly dials opens connections only at the allowed rate.
func TestManyDials(t *testing.T) {
	t.Parallel()
	const allowed = 5
	w := newWorld(t, nil)
	w.serve(t, outsider.String()+":80", echo)
	w.pace.SetLimit(rate.Every(time.Hour))
	w.pace.SetBurst(allowed)
	for range allowed {
		conn, err := w.dial(t, netip.AddrPortFrom(outsider, 80))
		assert.NoError(t, errors.Join(err, conn.Close()))
	}
	assert.ErrorSays(t, "one more", assert.ErrorOf(w.dial(t, netip.AddrPortFrom(outsider, 80))), "refused")
	last := w.Statistics().LastRefused
	assert.True(t, len(last) == 1 && last[0].Reason == report.RefusedTooMany, "refused were %+v", last)
}

// TestInward checks that a port of the host leads to the guest, that a connection is reset if the guest has no server at
// its port, and that a port is closed when it is taken away.
func TestInward(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	listener, err := gonet.ListenTCP(w.guest.stack, fullAddress(netip.MustParseAddrPort("10.213.0.9:80")), ipv4.ProtocolNumber)
	assert.NoError(t, err)
	go serveEach(listener, echo)
	open := w.openPorts(t, control.Port{Protocol: control.TCP, Port: 80}, control.Port{Protocol: control.TCP, Port: 81})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", open[0])
	assert.NoError(t, err)
	_, err = io.WriteString(conn, "hello")
	assert.NoError(t, err)
	assert.NoError(t, conn.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(conn)
	assert.True(t, err == nil && string(got) == "hello", "the answer is %q, %v", got, err)
	closed, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", open[1])
	if err == nil { // else it was reset before the call has returned
		_, err = io.ReadAll(closed)
	}
	assert.ErrorIs(t, "a port that the guest refuses", err, unix.ECONNRESET)
	w.want(t, control.Wanted{Revision: control.Revision{Epoch: 1, Number: 2}})
	for _, earlier := range []control.Revision{{Epoch: 1, Number: 1}, {Number: 3}} {
		assert.ErrorIs(t, "what an earlier leader wants", assert.ErrorOf(w.SetWanted(t.Context(), control.Wanted{Revision: earlier})), failure.ErrStale)
	}
	_, err = (&net.Dialer{}).DialContext(t.Context(), "tcp4", open[0])
	assert.ErrorIs(t, "a port that was taken away", err, unix.ECONNREFUSED)
}

// want configures the edge, and checks which ports it serves then.
func (w *world) want(t *testing.T, wanted control.Wanted, serves ...control.Port) {
	t.Helper()
	served, err := w.SetWanted(t.Context(), wanted)
	assert.NoError(t, err)
	if of, reported := w.Served(); of != wanted.Revision || !slices.Equal(served, serves) || !slices.Equal(reported, serves) {
		t.Errorf("served are %v, and reported %v of %+v, want %v of %+v", served, reported, of, serves, wanted.Revision)
	}
}

// openPorts opens ports of the host, and returns their addresses. A socket of a port that is not wanted, or for another
// revision, is not used.
func (w *world) openPorts(t *testing.T, keys ...control.Port) (addresses []string) {
	t.Helper()
	sockets := map[control.Port]*os.File{}
	for i := range keys {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp4", "127.0.0.1:0")
		assert.NoError(t, err)
		address := listener.Addr().(*net.TCPAddr)
		keys[i].HostIP, keys[i].HostPort = "127.0.0.1", uint16(address.Port) //nolint:gosec // a port
		addresses = append(addresses, address.String())
		sockets[keys[i]], err = listener.(*net.TCPListener).File()
		assert.NoError(t, err)
		assert.NoError(t, listener.Close())
	}
	wanted := control.Wanted{Revision: control.Revision{Epoch: 1, Number: 1}, Ports: keys}
	w.want(t, wanted)
	assert.ErrorIs(t, "sockets of another revision", w.GiveSockets(t.Context(), control.Revision{Epoch: 1}, sockets), failure.ErrStale)
	sockets[control.Port{Protocol: control.TCP, HostPort: 1, Port: 1}] = sockets[keys[0]]
	for range 2 { // the second time all ports exist
		assert.NoError(t, w.GiveSockets(t.Context(), wanted.Revision, sockets))
		w.want(t, wanted, keys...)
	}
	control.CloseFiles(slices.Collect(maps.Values(sockets))...)
	return addresses
}

// TestPolicy lists where a guest may connect to.
func TestPolicy(t *testing.T) {
	t.Parallel()
	const local = "203.0.113.1"
	change := func(c *control.NetworkConfig, o *Options) {
		c.Wanted.Egress.Denied = []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}
		o.Routes = allRoutes{netip.MustParseAddr(local): errors.New("it is the host's own")}
	}
	w := newWorld(t, change)
	for address, want := range map[string]error{
		outsider.String(): nil,
		"0.0.0.0":         ErrSpecial, "127.0.0.1": ErrSpecial, "127.9.9.9": ErrSpecial, "169.254.169.254": ErrSpecial,
		"168.63.129.16": ErrSpecial, "168.63.129.15": nil, "100.100.100.200": ErrSpecial, "100.100.100.100": nil,
		"224.0.0.1": ErrSpecial, "255.255.255.255": ErrSpecial, "::1": ErrSpecial, "::ffff:198.51.100.7": ErrSpecial, "64:ff9b::1": ErrSpecial,
		"172.30.0.1": ErrDenied, local: ErrNoUnicast, "10.213.0.1": failure.ErrNoMachine, "10.213.77.7": failure.ErrNoMachine,
	} {
		err := w.checkOutside(netip.MustParseAddr(address))
		assert.True(t, errors.Is(err, want) && (want != nil || err == nil), "%s: %v, want %v", address, err, want)
	}
	_, err := w.dial(t, netip.AddrPortFrom(netip.MustParseAddr(local), 22))
	assert.ErrorSays(t, "a connection to the host", err, "refused")
	last := w.Statistics().LastRefused
	if len(last) != 1 || last[0].Target != local+":22" || last[0].Protocol != control.TCP || last[0].Reason != report.RefusedNoRoute || last[0].Count != 1 {
		t.Errorf("what was refused is %+v", last)
	}
	w.want(t, control.Wanted{Egress: control.Egress{Deny: true}})
	assert.ErrorIs(t, "without egress", w.checkOutside(outsider), ErrNoEgress)
}

// openFlow returns a flow of the guest to a server of the outside.
func (w *world) openFlow(t *testing.T) (flow net.Conn, server net.PacketConn) {
	t.Helper()
	server, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	w.servers["udp "+outsider.String()+":53"] = server.LocalAddr().String()
	target := fullAddress(netip.AddrPortFrom(outsider, 53))
	flow, err = gonet.DialUDP(w.guest.stack, nil, &target, ipv4.ProtocolNumber)
	assert.NoError(t, err)
	return flow, server
}

// TestSetWanted checks that a range which is denied now is closed, for connections that are open and for flows too, and
// that connections to others stay.
func TestSetWanted(t *testing.T) {
	t.Parallel()
	other := netip.MustParseAddr("203.0.113.80")
	w := newWorld(t, nil)
	var open []net.Conn
	for _, to := range []netip.Addr{outsider, other} {
		w.serve(t, to.String()+":80", echo)
		conn, err := w.dial(t, netip.AddrPortFrom(to, 80))
		assert.NoError(t, err)
		open = append(open, conn)
	}
	answers := func(conn net.Conn) error {
		_, err := io.WriteString(conn, "hello")
		if err == nil {
			_, err = io.ReadFull(conn, make([]byte, 5))
		}
		return err
	}
	flow, server := w.openFlow(t)
	assert.NoError(t, assert.ErrorOf(io.WriteString(flow, "hello")))
	_, _, err := server.ReadFrom(make([]byte, 5))
	assert.NoError(t, errors.Join(err, answers(open[0]), answers(open[1])))
	denied := control.Egress{Denied: []netip.Prefix{netip.PrefixFrom(outsider, 24).Masked()}}
	w.want(t, control.Wanted{Egress: denied})
	assert.True(t, answers(open[0]) != nil, "a connection to the range is still open")
	assert.NoError(t, answers(open[1]))
	assert.Eventually(t, "packets of a flow that was open are refused", func(t testing.TB) error {
		_, _ = io.WriteString(flow, "hello")
		if last := w.Statistics().LastRefused; !slices.ContainsFunc(last, func(r report.Refusal) bool { return r.Protocol == control.UDP && r.Reason == report.RefusedDenied }) {
			t.Errorf("refused were %+v", last)
		}
		return nil
	})
	assert.ErrorSays(t, "a new connection", assert.ErrorOf(w.dial(t, netip.AddrPortFrom(outsider, 80))), "refused")
	assert.NoError(t, open[1].Close())
	assert.Eventually(t, "no connection is remembered that has ended", func(t testing.TB) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		n := len(w.outside)
		assert.True(t, n == 0, "there are %d", n)
		return nil
	})
}

// flippedRoutes lead outside, or all to the host itself if areOwn is set.
type flippedRoutes struct{ areOwn atomic.Bool }

func (r *flippedRoutes) CheckUnicast(netip.Addr) error {
	return assert.ErrorUnless(!r.areOwn.Load(), "it is the host's own")
}

// TestAddressOfHost checks that a flow ends once its address has become one of the host's, which the kernel would give
// its packets to.
func TestAddressOfHost(t *testing.T) {
	t.Parallel()
	routes, now := &flippedRoutes{}, clocktesting.NewFakeClock(time.Now())
	w := newWorld(t, func(_ *control.NetworkConfig, o *Options) { o.Routes, o.Clock = routes, now })
	flow, server := w.openFlow(t)
	assert.NoError(t, assert.ErrorOf(io.WriteString(flow, "first")))
	wantNext := func(want string) {
		packet := make([]byte, 16)
		n, _, err := server.ReadFrom(packet)
		assert.True(t, err == nil && string(packet[:n]) == want, "the server got %q, %v, want %q", packet[:n], err, want)
	}
	wantNext("first")
	routes.areOwn.Store(true)
	now.Step(flowCheckEvery)
	assert.Eventually(t, "packets are refused", func(t testing.TB) error {
		_, _ = io.WriteString(flow, "second")
		last := w.Statistics().LastRefused
		assert.True(t, slices.ContainsFunc(last, func(r report.Refusal) bool { return r.Reason == report.RefusedNoRoute }), "refused were %+v", last)
		return nil
	})
	assert.NoError(t, assert.ErrorOf(server.WriteTo([]byte("own"), server.LocalAddr())))
	wantNext("own")
}

// TestLongPackets checks that a packet of UDP that is too long does not arrive cut.
func TestLongPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	flow, server := w.openFlow(t)
	wantNext := func(want int) {
		n, _, err := server.ReadFrom(make([]byte, maxPacket))
		assert.True(t, err == nil && n == want, "the server got %d bytes, %v, want %d", n, err, want)
	}
	assert.NoError(t, assert.ErrorOf(flow.Write(make([]byte, flowPacket))))
	wantNext(flowPacket)
	received := make(chan struct{})
	go func() {
		defer close(received)
		wantNext(1)
	}()
	assert.NoError(t, assert.ErrorOf(flow.Write(make([]byte, flowPacket+1))))
	assert.Eventually(t, "a short one arrives", func(testing.TB) error {
		_, _ = flow.Write([]byte{0}) // for which the edge may have no room yet
		select {
		case <-received:
			return nil
		default:
			return errors.New("none has come")
		}
	})
}

// TestLargestFrame checks that the largest frame that QEMU takes of a guest does not end its network.
func TestLargestFrame(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.guest.sendFrame(make([]byte, 69632))
	assert.Equal(t, "its own name", w.guest.resolve(t, "a."), "10.213.0.9")
}

// TestNames checks which names are resolved, and by whom.
func TestNames(t *testing.T) {
	t.Parallel()
	peers := machines{"b": netip.MustParseAddr("10.213.0.10"), "c.other": netip.MustParseAddr("10.213.0.11"), "old": netip.MustParseAddr("10.214.0.10")}
	w := newWorld(t, func(_ *control.NetworkConfig, o *Options) { o.Peers = peers })
	w.serveNames(t)
	for name, want := range map[string]string{
		"b.": "10.213.0.10", "B.": "10.213.0.10", "b.ns.drover.internal.": "", "c.other.": "10.213.0.11", "c.other.drover.internal.": "10.213.0.11",
		"d.": "RCodeNameError", "old.": "RCodeNameError", "www.example.test.": "192.0.2.80", "example.test.": "192.0.2.80", "a.": "10.213.0.9",
	} {
		if want == "" {
			want = "RCodeNameError" // this table of machines knows no namespace
		}
		assert.Equal(t, name, w.guest.resolve(t, name), want)
	}
	w.want(t, control.Wanted{Egress: control.Egress{Deny: true}})
	assert.Equal(t, "without egress, a name of the outside", w.guest.resolve(t, "www.example.test."), "RCodeRefused")
}

// TestDeniedWhileAsking checks that no further resolver is asked once egress is denied.
func TestDeniedWhileAsking(t *testing.T) {
	t.Parallel()
	asked := make(chan string, 2)
	var w *world
	w = newWorld(t, func(c *control.NetworkConfig, o *Options) {
		c.Wanted.Egress.Resolvers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("192.0.2.54:53")}
		o.Dial = func(ctx context.Context, _, address string) (net.Conn, error) {
			asked <- address
			return nil, errors.Join(errors.New("it does not answer"), assert.ErrorOf(w.SetWanted(ctx, control.Wanted{Egress: control.Egress{Deny: true}})))
		}
	})
	assert.Equal(t, "the name", w.guest.resolve(t, "www.example.test."), "RCodeServerFailure")
	first := <-asked
	assert.True(t, first == "192.0.2.53:53" && len(asked) == 0, "%s was asked first, and then %d others", first, len(asked))
}

// TestNamesWithoutPeers checks that names of the outside are resolved while nobody tells of machines.
func TestNamesWithoutPeers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(_ *control.NetworkConfig, o *Options) { o.Peers = noPeers{} })
	w.serveNames(t)
	for name, want := range map[string]string{
		"example.test.": "192.0.2.80", "www.example.test.": "192.0.2.80", "b.": "RCodeServerFailure", "b.ns.drover.internal.": "RCodeServerFailure",
	} {
		assert.Equal(t, name, w.guest.resolve(t, name), want)
	}
}

// noPeers is the table of peers of a machine while no Drover runs.
type noPeers struct{ machines }

func (noPeers) Lookup(context.Context, string) (netip.Addr, error) {
	return netip.Addr{}, failure.ErrUnreachable
}

// machines is a table of peers.
type machines map[string]netip.Addr

func (m machines) Lookup(_ context.Context, name string) (netip.Addr, error) {
	if a, ok := m[name]; ok {
		return a, nil
	}
	return netip.Addr{}, failure.ErrNoMachine
}

func (machines) Dial(context.Context, string, uint16, netip.AddrPort) (*os.File, error) {
	return nil, failure.ErrNoMachine
}

// serveNames is a resolver of the outside.
func (w *world) serveNames(t *testing.T) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	w.servers["udp 192.0.2.53:53"] = conn.LocalAddr().String()
	go func() {
		packet := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(packet)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(packet[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: m.Questions[0].Name, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET},
				Body:   &dnsmessage.AResource{A: [4]byte{192, 0, 2, 80}},
			}}
			answer, _ := m.Pack()
			_, _ = conn.WriteTo(answer, from)
		}
	}()
}

// TestBudget checks that no guest makes its edge use more than the budget, and that it is given back.
func TestBudget(t *testing.T) {
	t.Parallel()
	b := newBudget()
	var shares []int
	for share := b.takeShare(keptByConnections); share > 0; share = b.takeShare(keptByConnections) {
		if buffer, copying := buffersOf(share); 2*buffer+2*copying+fixedShare > share || buffer < 2<<10 || copying < 1<<10 {
			t.Fatalf("a share of %d is divided into buffers of %d and %d", share, buffer, copying)
		}
		shares = append(shares, share)
	}
	assert.True(t, shares[0] == largestShare && shares[len(shares)-1] == smallestShare && len(shares) >= 400 && b.left >= 0,
		"%d shares from %d to %d, left %d", len(shares), shares[0], shares[len(shares)-1], b.left)
	for _, share := range shares {
		b.giveBack(share)
	}
	assert.Equal(t, "what is left", b.left, control.EdgeMemoryBytes)
}

// TestBudgetOfOthers checks that whoever has much of the budget leaves something to others: many connections to flows,
// connections and flows that have all they can to names, and all of them to Drover.
func TestBudgetOfOthers(t *testing.T) {
	t.Parallel()
	for name, connections := range map[string]int{"no connections": 0, "many connections": 200, "all connections": 1000} {
		b, flows, names := newBudget(), 0, 0
		for range connections {
			b.takeShare(keptByConnections)
		}
		for b.takeFlow() {
			flows++
		}
		for b.takeName() {
			names++
		}
		if own := b.takeShare(0); flows < 20 || names < 10 || own == 0 || flows*flowShare > maxFlows {
			t.Errorf("%s: there are %d flows, %d names, and %d bytes for Drover", name, flows, names, own)
		}
		for range flows + names {
			b.giveBackFlow()
		}
		assert.True(t, b.flows == 0, "%s: flows use %d bytes", name, b.flows)
	}
}

// TestBuffersOfSockets checks that the kernel's buffers of all connections but the first ones are bounded.
func TestBuffersOfSockets(t *testing.T) {
	t.Parallel()
	const many, first = 150, 16
	var mu sync.Mutex
	var outside []syscall.Conn
	w := newWorld(t, func(_ *control.NetworkConfig, o *Options) {
		dial := o.Dial
		o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				outside = append(outside, conn.(syscall.Conn))
			}
			return conn, err
		}
	})
	w.serve(t, outsider.String()+":7", echo)
	for range many {
		conn, err := w.dial(t, netip.AddrPortFrom(outsider, 7))
		assert.NoError(t, err)
		assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "x")))
		assert.NoError(t, assert.ErrorOf(io.ReadFull(conn, make([]byte, 1))))
	}
	sum := 0
	for _, conn := range outside[first:] {
		for _, option := range []int{unix.SO_RCVBUF, unix.SO_SNDBUF} {
			raw, err := conn.SyscallConn()
			assert.NoError(t, err)
			assert.NoError(t, raw.Control(func(fd uintptr) {
				size, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option)
				assert.NoError(t, err)
				sum += size
			}))
		}
	}
	assert.True(t, sum <= 2*control.EdgeMemoryBytes, "the kernel's buffers of %d connections are %d bytes", many-first, sum)
}
