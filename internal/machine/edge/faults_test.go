// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"

	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// udpFrame returns a frame of the guest with a datagram.
func (e *Edge) udpFrame(from uint16, to netip.AddrPort, payload []byte) []byte {
	frame := append(frameOf(e.MAC, e.Address.Addr(), to.Addr()), payload...)
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ip)), TTL: 64, Protocol: uint8(header.UDPProtocolNumber), SrcAddr: addressOf(e.Address.Addr()), DstAddr: addressOf(to.Addr()), //nolint:gosec // small
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	udp := header.UDP(frame[header.EthernetMinimumSize+header.IPv4MinimumSize:])
	udp.Encode(&header.UDPFields{SrcPort: from, DstPort: to.Port(), Length: uint16(len(udp))}) //nolint:gosec // small
	return frame
}

// synFrame returns a frame of the guest that begins a connection.
func (e *Edge) synFrame(from uint16, to netip.AddrPort) []byte {
	frame := append(frameOf(e.MAC, e.Address.Addr(), to.Addr()), make([]byte, header.TCPMinimumSize-header.ICMPv4MinimumSize)...)
	ip := header.IPv4(frame[header.EthernetMinimumSize:])
	source, target := addressOf(e.Address.Addr()), addressOf(to.Addr())
	ip.Encode(&header.IPv4Fields{TotalLength: header.IPv4MinimumSize + header.TCPMinimumSize, TTL: 64, Protocol: uint8(header.TCPProtocolNumber), SrcAddr: source, DstAddr: target})
	ip.SetChecksum(^ip.CalculateChecksum())
	segment := header.TCP(frame[header.EthernetMinimumSize+header.IPv4MinimumSize:])
	segment.Encode(&header.TCPFields{SrcPort: from, DstPort: to.Port(), SeqNum: 1, DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 1 << 15})
	segment.SetChecksum(^segment.CalculateChecksum(header.PseudoHeaderChecksum(header.TCPProtocolNumber, source, target, header.TCPMinimumSize)))
	return frame
}

// usedMemory returns what this process uses, in bytes: its heap, and its resident set.
func usedMemory(t testing.TB) (heap, resident int64) {
	t.Helper()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	var pages int64
	text, err := os.ReadFile("/proc/self/statm")
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(fmt.Sscan(string(text), new(int64), &pages)))
	return int64(m.HeapAlloc + m.StackInuse), pages * int64(os.Getpagesize()) //nolint:gosec // memory
}

// sinks are connections to the outside that take what they get and answer nothing.
type sinks struct {
	mu  sync.Mutex
	all []net.Conn
}

func (s *sinks) dial(context.Context, string, string) (net.Conn, error) {
	here, there := net.Pipe()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, there)
	return sink{here}, nil
}

// sink takes what it gets.
type sink struct{ net.Conn }

func (sink) Write(p []byte) (int, error) { return len(p), nil }

// TestFloods checks that a guest which begins connections without end, or sends packets to ever more targets, makes its
// edge use no more than the budget, and that the edge still answers.
func TestFloods(t *testing.T) {
	const many = 10000
	for name, c := range map[string]struct {
		frame func(e *Edge, i int) []byte
		most  int // connections to the outside
	}{
		"half-open connections": {func(e *Edge, i int) []byte { return e.synFrame(uint16(1024+i), netip.AddrPortFrom(outsider, 80)) }, maxDials},                 //nolint:gosec // any port
		"packets to many":       {func(e *Edge, i int) []byte { return e.udpFrame(1024, netip.AddrPortFrom(outsider, uint16(1+i)), nil) }, maxFlows / flowShare}, //nolint:gosec // any port
	} {
		t.Run(name, func(t *testing.T) {
			e, s := newIdleEdge(t), &sinks{}
			e.Dial = s.dial
			heap, resident := usedMemory(t)
			for i := range many {
				e.receive(c.frame(e, i))
			}
			assert.Eventually(t, "all that can be are there", func(testing.TB) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				return assert.ErrorUnless(len(s.all) == c.most, "there are %d, want %d", len(s.all), c.most)
			})
			heapNow, residentNow := usedMemory(t)
			t.Logf("%d connections use %d KiB of the heap and %d KiB more memory", c.most, (heapNow-heap)>>10, (residentNow-resident)>>10)
			assert.True(t, heapNow-heap <= control.EdgeMemoryBytes, "they use %d bytes of the heap", heapNow-heap)
			e.link.Drain()
			e.receive(frameOf(e.MAC, e.Address.Addr(), e.Gateway()))
			assert.True(t, e.link.Drain() != 0, "a ping is not answered any more")
		})
	}
}

// TestManyConnections checks what connections of a guest use that all have data in their buffers, that further ones are
// refused, and that new ones work once they have ended.
func TestManyConnections(t *testing.T) {
	tier.Full(t, "it makes thousands of connections, for ten seconds with the race detector; TestBudget and TestFloods have the limits")
	const many = 10000
	w, block := newWorld(t, nil), make([]byte, 16<<10)
	w.serve(t, outsider.String()+":80", func(conn net.Conn) { // which sends without end
		for {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	})
	w.serve(t, outsider.String()+":7", echo)
	small := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 8 << 10, Max: 8 << 10} // of the guest, which is measured too
	if err := w.guest.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &small); err != nil {
		t.Fatal(err)
	}
	heap, resident := usedMemory(t)
	var open []net.Conn
	var refused int
	for range many {
		conn, err := w.dial(t, netip.AddrPortFrom(outsider, 80))
		if err != nil {
			refused++
			continue
		}
		open = append(open, conn)
	}
	heapNow, residentNow := usedMemory(t)
	t.Logf("%d connections of %d use %d MiB of the heap and %d MiB more memory, with the guest's own", len(open), many, (heapNow-heap)>>20, (residentNow-resident)>>20)
	if heapNow-heap > 2*control.EdgeMemoryBytes { // the guest's own is about a third
		t.Errorf("they use %d bytes of the heap", heapNow-heap)
	}
	assert.True(t, refused != 0 && len(open) >= 400, "%d were refused, %d are open", refused, len(open))
	for _, conn := range open {
		_ = conn.Close()
	}
	assert.Eventually(t, "the budget is given back", func(testing.TB) error {
		w.budget.mu.Lock()
		defer w.budget.mu.Unlock()
		return assert.ErrorUnless(w.budget.left == control.EdgeMemoryBytes, "%d bytes are left, %+v", w.budget.left, w.Statistics())
	})
	conn, err := w.dial(t, netip.AddrPortFrom(outsider, 7))
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "x")))
	assert.NoError(t, assert.ErrorOf(io.ReadFull(conn, make([]byte, 1))))
}

// TestUnreadDownloads checks that downloads that a guest does not read stall no other.
func TestUnreadDownloads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.serve(t, outsider.String()+":80", func(conn net.Conn) { _, _ = io.Copy(conn, zeros{}) })
	w.serve(t, outsider.String()+":7", echo)
	for range 50 {
		assert.NoError(t, assert.ErrorOf(w.dial(t, netip.AddrPortFrom(outsider, 80))))
	}
	conn, err := w.dial(t, netip.AddrPortFrom(outsider, 7))
	assert.NoError(t, err)
	go func() { _, _ = io.CopyN(conn, zeros{}, 4<<20) }()
	assert.NoError(t, assert.ErrorOf(io.CopyN(io.Discard, conn, 4<<20)))
}

// query returns a query for an address.
func query(t testing.TB, id uint16, name string) []byte {
	t.Helper()
	packet, err := (&dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}).Pack()
	assert.NoError(t, err)
	return packet
}

// TestManyQueries checks that a guest may ask for names as often as it likes, also while resolvers of the outside do not
// answer, and has flows of UDP after that.
func TestManyQueries(t *testing.T) {
	t.Parallel()
	e, s := newIdleEdge(t), &sinks{}
	e.Dial, e.wanted.Egress.Resolvers = s.dial, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}
	at := netip.AddrPortFrom(e.Gateway(), control.DNSPort)
	for i := range 100 {
		e.receive(e.udpFrame(uint16(1024+i), at, query(t, 1, "slow.example.test.")))
	}
	for i := range 10000 {
		e.receive(e.udpFrame(uint16(1024+i), at, query(t, uint16(i), "a.")))
		udp, m := nextAnswer(t, e)
		for m.RCode == dnsmessage.RCodeServerFailure { // to the first ones, at last
			udp, m = nextAnswer(t, e)
		}
		assert.Require(t, udp.DestinationPort() == uint16(1024+i) && m.ID == uint16(i) && len(m.Answers) == 1,
			"answer %d is %+v, to port %d", i, m, udp.DestinationPort())
	}
	assert.True(t, e.budget.takeFlow(), "no flow of UDP is left")
}

// nextAnswer returns the next packet to the guest, which answers for a name.
func nextAnswer(t testing.TB, e *Edge) (udp header.UDP, m dnsmessage.Message) {
	t.Helper()
	ip := nextPacket(t, e)
	udp = ip.Payload()
	assert.NoError(t, m.Unpack(udp.Payload()))
	return udp, m
}

// nextPacket returns the next packet to the guest.
func nextPacket(t testing.TB, e *Edge) header.IPv4 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := e.link.ReadContext(ctx)
	assert.Require(t, p != nil, "no packet comes")
	defer p.DecRef()
	return header.IPv4(p.ToView().AsSlice())
}

// TestOddAnswers checks what a guest gets for answers of resolvers that are broken or too long.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	name := dnsmessage.MustNewName("www.example.test.")
	long := dnsmessage.Message{Header: dnsmessage.Header{Response: true}}
	for range 200 {
		long.Answers = append(long.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: name, Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassINET}, Body: &dnsmessage.TXTResource{TXT: []string{"0123456789"}},
		})
	}
	for what, c := range map[string]struct {
		answer func(query []byte) []byte
		want   func(dnsmessage.Header) bool
	}{
		"a loop": {func(q []byte) []byte {
			return append(q[:12:12], 0xc0, 12, 0, 1, 0, 1) // a name that points to itself
		}, func(h dnsmessage.Header) bool { return h.RCode == dnsmessage.RCodeServerFailure }},
		"nothing": {func([]byte) []byte { return nil }, func(h dnsmessage.Header) bool { return h.RCode == dnsmessage.RCodeServerFailure }},
		"too much": {func(q []byte) []byte {
			var m dnsmessage.Message
			_ = m.Unpack(q)
			long.ID, long.Questions = m.ID, m.Questions
			answer, _ := long.Pack()
			return answer
		}, func(h dnsmessage.Header) bool { return h.Truncated && h.RCode == dnsmessage.RCodeSuccess }},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			e := newIdleEdge(t)
			e.wanted.Egress.Resolvers = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}
			e.Dial = func(context.Context, string, string) (net.Conn, error) {
				here, there := net.Pipe()
				go func() {
					q := make([]byte, 1500)
					n, err := there.Read(q)
					if answer := c.answer(q[:n]); err == nil && answer != nil {
						answer[2] |= 0x80 // a response
						_, _ = there.Write(answer)
					}
				}()
				return here, nil
			}
			e.receive(e.udpFrame(1024, netip.AddrPortFrom(e.Gateway(), control.DNSPort), query(t, 5, name.String())))
			var p dnsmessage.Parser
			h, err := p.Start(header.UDP(nextPacket(t, e).Payload()).Payload())
			assert.NoError(t, err)
			assert.True(t, h.ID == 5 && h.Response && c.want(h), "the guest gets %+v", h)
		})
	}
}

// haltedPeers are machines that do not answer, but for one.
type haltedPeers struct {
	board

	dials chan<- time.Time
}

func (h haltedPeers) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	if h.peers[to.Addr()] != nil {
		return h.board.Dial(ctx, protocol, from, to)
	}
	deadline, _ := ctx.Deadline()
	h.dials <- deadline
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestHaltedPeer checks that a guest that connects to a machine whose supervisor is halted waits no longer than for any
// connection, and that it reaches others meanwhile. If another machine goes, connections to it end.
func TestHaltedPeer(t *testing.T) {
	t.Parallel()
	const other = "10.213.0.10"
	b := newWorld(t, func(c *control.NetworkConfig, _ *Options) {
		c.Address, c.MAC[5] = netip.MustParsePrefix(other+"/16"), 10
	})
	dials := make(chan time.Time, maxDials)
	a := newWorld(t, func(c *control.NetworkConfig, o *Options) {
		o.Peers = haltedPeers{board{c.Address.Addr(), map[netip.Addr]*Edge{netip.MustParseAddr(other): b.Edge}}, dials}
	})
	listener, err := gonet.ListenTCP(b.guest.stack, fullAddress(netip.MustParseAddrPort(other+":7")), ipv4.ProtocolNumber)
	assert.NoError(t, err)
	go serveEach(listener, echo)
	halted, stop := context.WithCancel(t.Context())
	defer stop()
	for range maxDials / 2 {
		go func() {
			_, _ = gonet.DialContextTCP(halted, a.guest.stack, fullAddress(netip.MustParseAddrPort("10.213.0.11:7")), ipv4.ProtocolNumber)
		}()
	}
	for range maxDials / 2 {
		limit := time.Until(assert.Receive(t, "a dial", dials))
		assert.True(t, limit <= dialWithin && limit >= dialWithin/2, "a dial may take %s", limit)
	}
	conn, err := a.dial(t, netip.MustParseAddrPort(other+":7"))
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(io.WriteString(conn, "x")))
	assert.NoError(t, assert.ErrorOf(io.ReadFull(conn, make([]byte, 1))))
	assert.NoError(t, b.guest.conn.Close())
	assert.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	_, err = conn.Read(make([]byte, 1))
	assert.True(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "a connection to a machine that is gone: %v", err)
}

// useSmallWindow has a guest take no more than some kilobytes of a connection that it does not read.
func (g *guest) useSmallWindow(t *testing.T) {
	t.Helper()
	small := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4 << 10, Default: 4 << 10, Max: 4 << 10}
	if err := g.stack.SetTransportProtocolOption(tcp.ProtocolNumber, &small); err != nil {
		t.Fatal(err)
	}
}

// setBudget sets what is left of the budget.
func (w *world) setBudget(left int) {
	w.budget.mu.Lock()
	defer w.budget.mu.Unlock()
	w.budget.left = left
}

// TestUnreadEnds checks that connections which have ended in both directions count until the guest has taken what is on
// its way, so that it cannot fill the memory with them.
func TestUnreadEnds(t *testing.T) {
	t.Parallel()
	const most, size = 20, 4 << 10 // more than the guest takes unread, and less than waits for it beside
	w := newWorld(t, nil)
	w.guest.useSmallWindow(t)
	w.serve(t, outsider.String()+":80", func(conn net.Conn) { _, _ = conn.Write(make([]byte, size)) })
	w.setBudget(keptByConnections + most*smallestShare)
	var open []net.Conn
	for range 5 * most {
		conn, err := w.dial(t, netip.AddrPortFrom(outsider, 80))
		if err == nil {
			assert.NoError(t, conn.(*gonet.TCPConn).CloseWrite())
			open = append(open, conn)
		}
	}
	assert.True(t, len(open) == most, "the guest has made %d connections, want %d", len(open), most)
	for _, conn := range open {
		n, err := io.Copy(io.Discard, conn)
		assert.True(t, n == size && err == nil, "the guest gets %d bytes, %v", n, err)
	}
	assert.Eventually(t, "the budget is given back", func(testing.TB) error {
		w.budget.mu.Lock()
		defer w.budget.mu.Unlock()
		return assert.ErrorUnless(w.budget.left == keptByConnections+most*smallestShare, "%d bytes are left", w.budget.left)
	})
}

// TestUnsentEnds checks that it is seen whether the other end of a connection that has ended has taken all, also of one
// with several paths, as clients may have.
func TestUnsentEnds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const size = 64 << 10
	for name, isMultipath := range map[string]bool{"one path": false, "several paths": true} {
		listener := framework.Listen(t, "tcp4", "127.0.0.1:0")
		dialer := net.Dialer{Control: func(_, _ string, socket syscall.RawConn) (err error) { // which takes little unread
			return errors.Join(socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, size/16) }), err)
		}}
		dialer.SetMultipathTCP(isMultipath)
		there, err := dialer.DialContext(t.Context(), "tcp4", listener.Addr().String())
		assert.NoError(t, err)
		here, err := listener.Accept()
		assert.NoError(t, err)
		t.Cleanup(func() { _, _ = here.Close(), there.Close() })
		assert.NoError(t, errors.Join(here.(*net.TCPConn).SetWriteBuffer(4*size), assert.ErrorOf(here.Write(make([]byte, size)))))
		assert.NoError(t, errors.Join(here.(*net.TCPConn).CloseWrite(), there.(*net.TCPConn).CloseWrite()))
		assert.NoError(t, assert.ErrorOf(io.Copy(io.Discard, here)))
		assert.True(t, !isSent(here), "%s: all is sent, though the other end has not read it", name)
		n, err := io.Copy(io.Discard, there)
		assert.True(t, n == size && err == nil, "%s: the other end gets %d bytes of %d, %v", name, n, size, err)
		assert.True(t, w.waitUntil(func() bool { return isSent(here) }, time.Minute), "%s: it is not sent, though the other end has read it", name)
	}
}

// TestShortSegments checks that a guest which does not read what comes byte by byte makes its edge keep few segments, and
// gets all later.
func TestShortSegments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.guest.useSmallWindow(t)
	listener, err := gonet.ListenTCP(w.guest.stack, fullAddress(netip.AddrPortFrom(w.Address.Addr(), 80)), ipv4.ProtocolNumber)
	assert.NoError(t, err)
	conn, share, err := w.dialGuest(t.Context(), netip.AddrPortFrom(w.Gateway(), 0), 80, 0)
	assert.NoError(t, err)
	guest, err := listener.Accept()
	assert.NoError(t, err)
	here, there := net.Pipe()
	go conn.join(here, share)
	sent := 0
	for err == nil {
		assert.NoError(t, there.SetWriteDeadline(time.Now().Add(100*time.Millisecond)))
		if _, err = there.Write([]byte{byte(sent % 256)}); err == nil {
			sent++
		}
	}
	most := 2*conn.buffer/segmentBytes + 4<<10
	assert.True(t, sent <= most, "%d segments are kept, want at most %d", sent, most)
	go func() {
		_, _ = io.CopyN(there, zeros{}, 1<<20)
		_ = there.Close()
	}()
	got, err := io.ReadAll(guest)
	assert.NoError(t, err)
	assert.True(t, len(got) >= sent && int(got[sent-1]) == (sent-1)%256, "the guest gets %d bytes of %d", len(got), sent)
}

// TestCutOff checks that a guest learns that a connection was cut off, which is no end of what it reads.
func TestCutOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.serve(t, outsider.String()+":80", func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 1))
		control.Reset(conn)
	})
	conn, err := w.dial(t, netip.AddrPortFrom(outsider, 80))
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(conn.Write([]byte{0})))
	_, err = conn.Read(make([]byte, 1))
	assert.ErrorSays(t, "a read", err, "reset")
}

// meter says how long each packet is that it takes.
type meter struct {
	net.Conn

	lengths chan<- int
}

func (m meter) Write(p []byte) (int, error) {
	m.lengths <- len(p)
	return len(p), nil
}

// TestEmptyPackets checks that packets without data, which the stack does not count, do not gather while a flow is being
// made, and that it carries on others after that.
func TestEmptyPackets(t *testing.T) {
	t.Parallel()
	const many = 10000
	e, at, lengths, mayDial := newIdleEdge(t), netip.AddrPortFrom(outsider, 99), make(chan int, 2*many), make(chan struct{})
	e.Dial = func(context.Context, string, string) (net.Conn, error) {
		<-mayDial
		here, _ := net.Pipe()
		return meter{here, lengths}, nil
	}
	for range many {
		e.receive(e.udpFrame(1024, at, nil))
	}
	close(mayDial)
	empty := 0
	assert.Eventually(t, "a packet with data arrives", func(testing.TB) error {
		e.receive(e.udpFrame(1024, at, []byte("x")))
		for {
			select {
			case n := <-lengths:
				if n > 0 {
					return nil
				}
				empty++
			default:
				return errors.New("none has arrived")
			}
		}
	})
	assert.True(t, empty <= maxWaiting+1, "%d packets have waited", empty)
}
