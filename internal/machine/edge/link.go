// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package edge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/channel"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"cloudnative.tw/drover/internal/machine/control"
)

const (
	// lengthBytes is how many bytes QEMU's stream puts before each frame: its length, big-endian (net/stream.c).
	lengthBytes = 4
	// maxFrame is the most that QEMU takes of a guest (NET_BUFSIZE in include/net/net.h).
	maxFrame = 4<<10 + 64<<10
	// batchBytes is how much is written to QEMU at a time.
	batchBytes = 64 << 10
)

// gatewayMAC is the gateway's hardware address. Each machine has a network of its own, so all may have the same.
var gatewayMAC = net.HardwareAddr{0x52, 0x54, 0x00, 0x00, 0x00, 0x01}

// link leads to the guest.
type link struct {
	*channel.Endpoint

	config control.NetworkConfig
	counts *counts
}

// receiveFrames takes the guest's frames until the connection ends.
func (e *Edge) receiveFrames(conn net.Conn) error {
	from := bufio.NewReaderSize(conn, batchBytes)
	frame := make([]byte, maxFrame)
	for {
		var length [lengthBytes]byte
		if _, err := io.ReadFull(from, length[:]); err != nil {
			return ignoreEnd(err)
		}
		n := binary.BigEndian.Uint32(length[:])
		if n > maxFrame {
			return fmt.Errorf("QEMU sent a frame of %d bytes: at most %d are allowed", n, maxFrame)
		}
		if _, err := io.ReadFull(from, frame[:n]); err != nil {
			return ignoreEnd(err)
		}
		e.receive(frame[:n])
	}
}

// ignoreEnd returns nil for the end of a connection, with frames on their way too.
func ignoreEnd(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, end) {
			return nil
		}
	}
	return err
}

// receive takes one frame of the guest. Those that are not the guest's own are dropped.
func (e *Edge) receive(frame []byte) {
	e.counts.received.Add(1)
	e.counts.receivedBytes.Add(int64(len(frame)))
	if len(frame) < header.EthernetMinimumSize {
		e.counts.dropped.Add(1)
		return
	}
	ethernet := header.Ethernet(frame)
	if !bytes.Equal(frame[6:12], e.MAC) {
		e.counts.dropped.Add(1)
		return
	}
	payload := frame[header.EthernetMinimumSize:]
	switch ethernet.Type() {
	case header.ARPProtocolNumber:
		e.link.answerARP(payload)
	case header.IPv4ProtocolNumber:
		if to := ethernet.DestinationAddress(); to == tcpip.LinkAddress(gatewayMAC) || to == header.EthernetBroadcastAddress {
			e.receiveIPv4(payload)
		}
	case header.IPv6ProtocolNumber: // there is none here, but every guest tries
	default:
		e.counts.dropped.Add(1)
	}
}

// answerARP says that every address but the guest's own is the gateway's.
func (l *link) answerARP(packet []byte) {
	request := header.ARP(packet)
	if !request.IsValid() || request.Op() != header.ARPRequest {
		return
	}
	asked := netip.AddrFrom4([4]byte(request.ProtocolAddressTarget()))
	if asked == l.config.Address.Addr() || !l.config.Address.Masked().Contains(asked) { // else guests that probe for their own would not take it
		return
	}
	answer := make([]byte, header.ARPSize)
	reply := header.ARP(answer)
	reply.SetIPv4OverEthernet()
	reply.SetOp(header.ARPReply)
	copy(reply.HardwareAddressSender(), gatewayMAC)
	copy(reply.ProtocolAddressSender(), request.ProtocolAddressTarget())
	copy(reply.HardwareAddressTarget(), l.config.MAC)
	copy(reply.ProtocolAddressTarget(), request.ProtocolAddressSender())
	l.send(header.ARPProtocolNumber, answer)
}

// receiveIPv4 answers what is for the edge itself, and has the stack take what else the guest sends as itself.
func (e *Edge) receiveIPv4(packet []byte) {
	ip := header.IPv4(packet)
	if !ip.IsValid(len(packet)) {
		e.counts.dropped.Add(1)
		return
	}
	packet = packet[:ip.TotalLength()]
	if isDHCP(ip) {
		e.link.answerDHCP(ip.Payload()[header.UDPMinimumSize:])
		return
	}
	if ip.SourceAddress() != addressOf(e.Address.Addr()) {
		e.counts.dropped.Add(1)
		return
	}
	switch {
	case ip.TransportProtocol() == header.ICMPv4ProtocolNumber:
		e.pings.receive(ip)
	case isDNS(ip, e.Gateway()):
		names{e}.answerUDP(ip.Payload())
	case !e.flows.mayWait(ip):
		e.counts.dropped.Add(1)
	default:
		e.link.inject(packet)
	}
}

// inject gives a packet to the stack.
func (l *link) inject(packet []byte) {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	defer p.DecRef()
	l.InjectInbound(ipv4.ProtocolNumber, p)
}

// sendIPv4 sends a packet to the guest past the stack.
func (l *link) sendIPv4(protocol tcpip.TransportProtocolNumber, from, to netip.Addr, payload []byte) {
	packet := make([]byte, header.IPv4MinimumSize, header.IPv4MinimumSize+len(payload))
	ip := header.IPv4(packet)
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(header.IPv4MinimumSize + len(payload)), TTL: 64, Protocol: uint8(protocol), //nolint:gosec // one frame
		SrcAddr: addressOf(from), DstAddr: addressOf(to),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	l.send(header.IPv4ProtocolNumber, append(packet, payload...))
}

// sendUDP sends a datagram to the guest past the stack, without a checksum.
func (l *link) sendUDP(from, to netip.AddrPort, payload []byte) {
	datagram := make(header.UDP, header.UDPMinimumSize, header.UDPMinimumSize+len(payload))
	datagram.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: uint16(header.UDPMinimumSize + len(payload))}) //nolint:gosec // one frame
	l.sendIPv4(header.UDPProtocolNumber, from.Addr(), to.Addr(), append(datagram, payload...))
}

// send puts a packet into the queue to the guest, or drops it if that is full.
func (l *link) send(protocol tcpip.NetworkProtocolNumber, packet []byte) {
	p := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)})
	defer p.DecRef()
	p.NetworkProtocolNumber = protocol
	var list stack.PacketBufferList
	list.PushBack(p)
	_, _ = l.WritePackets(list) // which makes references of its own
}

// sendUnreachable tells the guest that a packet came to nothing (RFC 792): that is prohibited by administration. The
// answer has the first 8 bytes of the packet's payload.
func (l *link) sendUnreachable(protocol tcpip.TransportProtocolNumber, to netip.Addr, payload []byte) {
	const payloadBytes = 8
	message := make([]byte, header.ICMPv4MinimumSize+header.IPv4MinimumSize+payloadBytes)
	original := header.IPv4(message[header.ICMPv4MinimumSize:])
	original.Encode(&header.IPv4Fields{
		TotalLength: header.IPv4MinimumSize + payloadBytes, TTL: 64, Protocol: uint8(protocol), SrcAddr: addressOf(l.config.Address.Addr()), DstAddr: addressOf(to), //nolint:gosec // 8 bits
	})
	original.SetChecksum(^original.CalculateChecksum())
	copy(original.Payload(), payload)
	icmp := header.ICMPv4(message)
	icmp.SetType(header.ICMPv4DstUnreachable)
	icmp.SetCode(header.ICMPv4AdminProhibited)
	icmp.SetChecksum(^checksum.Checksum(message, 0))
	l.sendIPv4(header.ICMPv4ProtocolNumber, l.config.Gateway(), l.config.Address.Addr(), message)
}

// sendFrames writes what waits for the guest, several frames at a time.
func (l *link) sendFrames(ctx context.Context, conn net.Conn) error {
	batch := make([]byte, 0, batchBytes)
	for {
		p := l.ReadContext(ctx)
		if p == nil {
			return nil
		}
		batch = batch[:0]
		for p != nil {
			batch = l.appendFrame(batch, p)
			if len(batch) > cap(batch)-l.config.MTU-lengthBytes-header.EthernetMinimumSize {
				break
			}
			p = l.Read()
		}
		if _, err := conn.Write(batch); err != nil {
			return ignoreEnd(err)
		}
	}
}

// appendFrame appends a packet in the format of QEMU's stream, and releases it.
func (l *link) appendFrame(batch []byte, p *stack.PacketBuffer) []byte {
	defer p.DecRef()
	l.counts.sent.Add(1)
	l.counts.sentBytes.Add(int64(p.Size()))
	batch = binary.BigEndian.AppendUint32(batch, uint32(header.EthernetMinimumSize+p.Size())) //nolint:gosec // one frame
	batch = append(append(batch, l.config.MAC...), gatewayMAC...)
	batch = binary.BigEndian.AppendUint16(batch, uint16(p.NetworkProtocolNumber)) //nolint:gosec // 16 bits
	for _, part := range p.AsSlices() {
		batch = append(batch, part...)
	}
	return batch
}
