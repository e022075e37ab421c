// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"cloudnative.tw/drover/internal/machine/failure"
)

// Switchboard connects a machine to the other machines of its host.
type Switchboard interface {
	// Lookup returns the address of a machine by its name, or by name.namespace.
	Lookup(ctx context.Context, name string) (netip.Addr, error)
	// Dial connects from sourcePort of the calling machine to another machine. The caller closes the socket.
	Dial(ctx context.Context, protocol string, sourcePort uint16, destination netip.AddrPort) (*os.File, error)
}

// Peer is a machine to which other machines connect.
type Peer interface {
	// Accept accepts a connection from another machine to a port of the guest. The caller closes the socket.
	Accept(ctx context.Context, c PeerConn, socket *os.File) error
	// Join gives the machine a link to a switchboard. It returns once the link has ended.
	Join(link *PeerLink)
}

// PeerConn is a connection of one machine to another.
type PeerConn struct {
	Protocol string `json:"protocol"` // tcp, udp or icmp
	// From is the source, and To the destination. For pings the port of From is the ICMP identifier.
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
}

// ConnectPeers returns two connected sockets, one for each machine: a stream for TCP, and packets for UDP and ICMP.
func ConnectPeers(protocol string) (here, there *os.File, err error) {
	kind := unix.SOCK_STREAM
	if protocol != TCP {
		kind = unix.SOCK_SEQPACKET
	}
	return SocketPair(kind)
}

// SocketPair returns two connected sockets.
func SocketPair(kind int) (here, there *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "peer"), os.NewFile(uintptr(fds[1]), "peer"), nil
}

// joinPath is the path of Peer.Join. The call takes over its connection.
const joinPath = "/v1/join"

// Limits of calls over a link. Guests cause these calls by their DNS queries and connections.
const (
	// maxMessage limits a message, in bytes. The longest has 32 ports, the most that a machine may have.
	maxMessage = 4 << 10
	// maxPeerCalls limits the calls of a link that wait for an answer: the queue of a socket has room for all of them.
	// peerCallsASecond limits the mean rate of a machine's calls, since each takes some 0.1 ms of the switchboard, which
	// all machines share.
	maxPeerCalls, peerCallsASecond = 256, 1000
	// callSendWithin limits the time to send a call or an answer. Only an end that does not read exceeds it.
	callSendWithin = time.Second
)

// peerCall is a call over a link: Lookup if it has a name, or else Dial or Accept.
type peerCall struct {
	ID   uint64    `json:"id"`
	Name string    `json:"name,omitempty"`
	Conn *PeerConn `json:"conn,omitempty"`
}

// peerAnswer is the answer to a peerCall.
type peerAnswer struct {
	ID      uint64     `json:"id"`
	Address netip.Addr `json:"address,omitzero"`
	Failure string     `json:"failure,omitempty"`
}

// SendMessage sends the length of a value, the value, and sockets as SCM_RIGHTS. It tries to send all in one call, since
// each call takes a place in the queue of the socket.
func SendMessage(conn *net.UnixConn, value any, sockets ...*os.File) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var rights []byte
	if len(sockets) > 0 {
		fds := make([]int, len(sockets))
		for i, socket := range sockets {
			fds[i] = int(socket.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	message := append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...) //nolint:gosec // the receiver allows far less
	n, _, err := conn.WriteMsgUnix(message, rights, nil)
	if err == nil && n < len(message) {
		_, err = conn.Write(message[n:])
	}
	return err
}

// ReceiveMessage receives a value, and at most maxSockets sockets. The caller closes the sockets, even after an error.
func ReceiveMessage(conn *net.UnixConn, message any, maxSockets int) (sockets []*os.File, err error) {
	var length [4]byte
	rights := make([]byte, unix.CmsgSpace(4*maxSockets))
	n, rightsBytes, _, _, err := conn.ReadMsgUnix(length[:], rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsBytes])
	for _, controlMessage := range messages {
		fds, parseErr := unix.ParseUnixRights(&controlMessage)
		err = errors.Join(err, parseErr)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			sockets = append(sockets, os.NewFile(uintptr(fd), "socket"))
		}
	}
	if err == nil && len(sockets) > maxSockets { // CmsgSpace rounds up, so there may be room for one more
		err = errRequest
	}
	if err == nil {
		_, err = io.ReadFull(conn, length[n:])
	}
	size := binary.BigEndian.Uint32(length[:])
	if err != nil || size > maxMessage {
		return sockets, cmp.Or(err, errRequest)
	}
	text := make([]byte, size)
	if _, err = io.ReadFull(conn, text); err == nil {
		err = json.Unmarshal(text, message)
	}
	return sockets, err
}

// ReceiveLink receives a message with the two sockets of a link.
func ReceiveLink(conn *net.UnixConn, message any) (calls, accepts *net.UnixConn, err error) {
	const linkSockets = 2
	files, err := ReceiveMessage(conn, message, linkSockets)
	defer CloseFiles(files...)
	if err != nil || len(files) != linkSockets {
		return nil, nil, cmp.Or(err, errRequest)
	}
	if calls, err = unixConn(files[0]); err != nil {
		return nil, nil, err
	}
	if accepts, err = unixConn(files[1]); err != nil {
		return nil, nil, errors.Join(err, calls.Close())
	}
	return calls, accepts, nil
}

// unixConn returns a connection for a Unix socket. The caller closes both.
func unixConn(f *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	if c, ok := conn.(*net.UnixConn); ok {
		return c, nil
	}
	return nil, errors.Join(errRequest, conn.Close())
}

// PeerLink is the calling end of a link: a machine calls its switchboard, or a switchboard calls a machine.
type PeerLink struct {
	conn *net.UnixConn

	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan<- linkAnswer
	isOver  bool
}

type linkAnswer struct {
	peerAnswer

	socket *os.File
}

// NewPeerLink returns the calling end of a link. The caller runs Follow, which receives the answers.
func NewPeerLink(conn *net.UnixConn) *PeerLink {
	return &PeerLink{conn: conn, waiting: map[uint64]chan<- linkAnswer{}}
}

// Follow receives answers until the link ends.
func (l *PeerLink) Follow() {
	defer l.Close()
	for {
		var answer linkAnswer
		sockets, err := ReceiveMessage(l.conn, &answer.peerAnswer, 1)
		if err != nil {
			CloseFiles(sockets...)
			return
		}
		if len(sockets) > 0 {
			answer.socket = sockets[0]
		}
		if !l.deliverAnswer(answer) { // the caller no longer waits
			CloseFiles(sockets...)
		}
	}
}

// deliverAnswer passes an answer to its caller, and reports whether the caller still waits.
func (l *PeerLink) deliverAnswer(answer linkAnswer) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	caller := l.waiting[answer.ID]
	if caller == nil {
		return false
	}
	delete(l.waiting, answer.ID)
	caller <- answer // the channel has room for one answer
	return true
}

// Close ends the link.
func (l *PeerLink) Close() {
	_ = l.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isOver = true
	for id, caller := range l.waiting {
		close(caller)
		delete(l.waiting, id)
	}
}

// makeCall sends a call with sockets, and waits for the answer.
func (l *PeerLink) makeCall(ctx context.Context, c peerCall, sockets ...*os.File) (linkAnswer, error) {
	answered := make(chan linkAnswer, 1)
	l.mu.Lock()
	if l.isOver || len(l.waiting) == maxPeerCalls {
		l.mu.Unlock()
		return linkAnswer{}, failure.ErrUnreachable
	}
	l.last++
	c.ID = l.last
	l.waiting[c.ID] = answered
	_ = l.conn.SetWriteDeadline(deadlineAfter(callSendWithin))
	err := SendMessage(l.conn, c, sockets...)
	l.mu.Unlock()
	if err != nil { // a part of the message may have been sent
		l.Close()
		return linkAnswer{}, failure.ErrUnreachable
	}
	select {
	case answer, isOpen := <-answered:
		if !isOpen {
			return answer, failure.ErrUnreachable
		}
		return answer, failure.ByName(answer.Failure)
	case <-ctx.Done():
		l.forgetCall(c.ID, answered)
		return linkAnswer{}, ctx.Err()
	}
}

// forgetCall stops waiting for an answer, and closes the socket of an answer that has just arrived.
func (l *PeerLink) forgetCall(id uint64, answered <-chan linkAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, id)
	select {
	case answer := <-answered:
		if answer.socket != nil {
			_ = answer.socket.Close()
		}
	default:
	}
}

// Lookup implements Switchboard.
func (l *PeerLink) Lookup(ctx context.Context, name string) (netip.Addr, error) {
	answer, err := l.makeCall(ctx, peerCall{Name: name})
	return answer.Address, err
}

// Dial implements Switchboard.
func (l *PeerLink) Dial(ctx context.Context, protocol string, sourcePort uint16, destination netip.AddrPort) (*os.File, error) {
	c := PeerConn{Protocol: protocol, From: netip.AddrPortFrom(netip.IPv4Unspecified(), sourcePort), To: destination}
	answer, err := l.makeCall(ctx, peerCall{Conn: &c})
	if err == nil && answer.socket == nil {
		err = failure.ErrProtocol
	}
	return answer.socket, err
}

// Accept calls Peer.Accept of the machine at the other end.
func (l *PeerLink) Accept(ctx context.Context, c PeerConn, socket *os.File) error {
	answer, err := l.makeCall(ctx, peerCall{Conn: &c}, socket)
	if answer.socket != nil {
		_ = answer.socket.Close()
	}
	return err
}

// ServeSwitchboard answers a machine's calls until the connection or ctx ends.
func ServeSwitchboard(ctx context.Context, conn *net.UnixConn, board Switchboard) error {
	return serveLink(ctx, conn, peerCallsASecond, func(ctx context.Context, call peerCall, _ *os.File) (address netip.Addr, socket *os.File, err error) {
		switch {
		case call.Name != "":
			address, err = board.Lookup(ctx, call.Name)
		case call.Conn != nil:
			socket, err = board.Dial(ctx, call.Conn.Protocol, call.Conn.From.Port(), call.Conn.To)
		default:
			err = errRequest
		}
		return address, socket, err
	})
}

// ServePeer answers a switchboard's calls with accept, which is Peer.Accept, until the connection or ctx ends.
func ServePeer(ctx context.Context, conn *net.UnixConn, accept func(context.Context, PeerConn, *os.File) error) error {
	return serveLink(ctx, conn, rate.Inf, func(ctx context.Context, call peerCall, socket *os.File) (netip.Addr, *os.File, error) {
		if call.Conn == nil || socket == nil {
			return netip.Addr{}, nil, errRequest
		}
		return netip.Addr{}, nil, accept(ctx, *call.Conn, socket)
	})
}

// serveLink answers calls until the connection or ctx ends. A call and an answer may each have a socket. serveLink closes
// both.
func serveLink(ctx context.Context, conn *net.UnixConn, callsASecond rate.Limit, answer func(context.Context, peerCall, *os.File) (netip.Addr, *os.File, error)) error {
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var sending sync.Mutex
	send := func(id uint64, address netip.Addr, err error, sockets ...*os.File) {
		sending.Lock()
		defer sending.Unlock()
		_ = conn.SetWriteDeadline(deadlineAfter(callSendWithin))
		if err := SendMessage(conn, peerAnswer{id, address, failure.NameOf(err)}, sockets...); err != nil {
			_ = conn.Close()
		}
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	places, limiter := make(chan struct{}, maxPeerCalls), rate.NewLimiter(callsASecond, maxPeerCalls)
	for {
		var call peerCall
		sockets, err := ReceiveMessage(conn, &call, 1)
		if err == nil {
			err = limiter.Wait(ctx)
		}
		if err != nil {
			CloseFiles(sockets...)
			return explainError(err)
		}
		select {
		case places <- struct{}{}:
		default: // the other end exceeds maxPeerCalls
			CloseFiles(sockets...)
			send(call.ID, netip.Addr{}, failure.ErrFailed)
			continue
		}
		calls.Go(func() {
			defer func() { <-places }()
			defer CloseFiles(sockets...)
			ctx, cancel := context.WithTimeout(ctx, CallWithin)
			defer cancel()
			address, socket, err := answer(ctx, call, firstFile(sockets))
			if socket == nil {
				send(call.ID, address, err)
				return
			}
			send(call.ID, address, err, socket)
			_ = socket.Close()
		})
	}
}

// firstFile returns the first file, nil if there is none.
func firstFile(files []*os.File) *os.File {
	if len(files) == 0 {
		return nil
	}
	return files[0]
}

// serveJoin serves Client.Join: it receives two sockets, one for calls of the machine and one for calls to it.
func serveJoin(ctx context.Context, w http.ResponseWriter, p Peer) {
	conn, err := takeConnection(w)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadlineAfter(sendWithin))
	calls, accepts, err := ReceiveLink(conn, &struct{}{})
	if err == nil {
		link := NewPeerLink(calls)
		go func() {
			defer link.Close()
			_ = ServePeer(ctx, accepts, p.Accept)
		}()
		go func() {
			defer func() { _ = accepts.Close() }()
			p.Join(link)
		}()
	}
	_ = SendMessage(conn, peerAnswer{Failure: failure.NameOf(err)})
}

// Join gives the machine a link to a switchboard: calls is a socket for calls of the machine, accepts for calls to it.
func (c *Client) Join(ctx context.Context, calls, accepts *os.File) error {
	var answer peerAnswer
	if err := c.exchangeMessage(ctx, joinPath, struct{}{}, &answer, calls, accepts); err != nil {
		return err
	}
	return failure.ByName(answer.Failure)
}

// exchangeMessage sends a message with sockets, and receives the answer.
func (c *Client) exchangeMessage(ctx context.Context, path string, message, answer any, sockets ...*os.File) error {
	conn, err := c.takeOver(ctx, http.MethodPost, path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(deadlineAfter(CallWithin))
	err = SendMessage(conn, message, sockets...)
	if err == nil {
		var unexpected []*os.File
		unexpected, err = ReceiveMessage(conn, answer, 1)
		CloseFiles(unexpected...)
	}
	if err != nil {
		return explainError(err)
	}
	return nil
}
