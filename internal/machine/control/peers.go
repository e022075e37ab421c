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

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
)

// Switchboard connects machines of a host to each other. It knows which of them may meet, and no data passes it: each end
// gets one of two connected sockets.
type Switchboard interface {
	// Lookup returns the address of a machine by its name, or by name.namespace.
	Lookup(ctx context.Context, name string) (netip.Addr, error)
	// Dial connects to a port of a machine, from a port of the machine that asks. The caller closes the socket.
	Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error)
}

// Peer is a machine that others connect to.
type Peer interface {
	// Accept takes a connection of another machine to a port of the guest.
	Accept(ctx context.Context, c PeerConn, socket *os.File) error
	// Join gives the machine a link to a switchboard. It returns once the link has ended.
	Join(link *PeerLink)
}

// PeerConn is a connection of one machine to another.
type PeerConn struct {
	Protocol string `json:"protocol"` // tcp or udp
	// From is the address and port of the machine that connects, and Port that of the other's guest.
	From netip.AddrPort `json:"from"`
	Port uint16         `json:"port"`
}

// ConnectPeers returns two connected sockets, an end for each of two machines: a stream for TCP, and packets for UDP.
func ConnectPeers(protocol string) (here, there *os.File, err error) {
	kind := unix.SOCK_STREAM
	if protocol == UDP {
		kind = unix.SOCK_SEQPACKET
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(fds[0]), "peer"), os.NewFile(uintptr(fds[1]), "peer"), nil
}

// Paths of the calls of Peer. Each takes over its connection.
const (
	acceptPath = "/v1/accept"
	joinPath   = "/v1/join"
)

// Limits of what others can ask for, a guest by its names and connections among them.
const (
	// maxMessage limits a message, in bytes. That of 32 ports, which a machine has at most, is the longest.
	maxMessage = 4 << 10
	// maxPeerCalls is how many calls of a machine are answered at a time, and peerCallsASecond how many in the long run.
	maxPeerCalls, peerCallsASecond = 64, 200
)

// peerCall is a call of a Switchboard, and peerAnswer its answer, to a dial with a socket.
type peerCall struct {
	ID       uint64         `json:"id"`
	Name     string         `json:"name,omitempty"`
	Protocol string         `json:"protocol,omitempty"`
	From     uint16         `json:"from,omitempty"`
	To       netip.AddrPort `json:"to,omitzero"`
}

type peerAnswer struct {
	ID      uint64     `json:"id"`
	Address netip.Addr `json:"address,omitzero"`
	Failure string     `json:"failure,omitempty"`
}

// sendMessage sends a value with its length before it, and sockets as SCM_RIGHTS with its first byte.
func sendMessage(conn *net.UnixConn, value any, sockets ...*os.File) error {
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
	length := binary.BigEndian.AppendUint32(nil, uint32(len(text))) //nolint:gosec // the receiver allows far less
	if _, _, err = conn.WriteMsgUnix(length, rights, nil); err == nil {
		_, err = conn.Write(text)
	}
	return err
}

// receiveMessage receives a value, and at most so many sockets, which the caller closes, also after an error.
func receiveMessage(conn *net.UnixConn, to any, mostSockets int) (sockets []*os.File, err error) {
	var length [4]byte
	rights := make([]byte, unix.CmsgSpace(4*mostSockets))
	n, rightsBytes, _, _, err := conn.ReadMsgUnix(length[:], rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rightsBytes])
	for _, one := range messages {
		fds, parseErr := unix.ParseUnixRights(&one)
		err = errors.Join(err, parseErr)
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			sockets = append(sockets, os.NewFile(uintptr(fd), "socket"))
		}
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
		err = json.Unmarshal(text, to)
	}
	return sockets, err
}

// PeerLink is a machine's link to a switchboard.
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

func newPeerLink(conn *net.UnixConn) *PeerLink {
	return &PeerLink{conn: conn, waiting: map[uint64]chan<- linkAnswer{}}
}

// Follow receives answers until the link ends.
func (l *PeerLink) Follow() {
	defer l.end()
	for {
		var answer linkAnswer
		sockets, err := receiveMessage(l.conn, &answer.peerAnswer, 1)
		if err != nil {
			closeFiles(sockets)
			return
		}
		if len(sockets) > 0 {
			answer.socket = sockets[0]
		}
		l.mu.Lock()
		to := l.waiting[answer.ID]
		delete(l.waiting, answer.ID)
		l.mu.Unlock()
		if to == nil { // the caller has given up
			closeFiles(sockets)
			continue
		}
		to <- answer
	}
}

func (l *PeerLink) end() {
	_ = l.conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.isOver = true
	for id, to := range l.waiting {
		close(to)
		delete(l.waiting, id)
	}
}

// call makes a call and waits for its answer.
func (l *PeerLink) call(ctx context.Context, c peerCall) (linkAnswer, error) {
	answered := make(chan linkAnswer, 1)
	l.mu.Lock()
	if l.isOver {
		l.mu.Unlock()
		return linkAnswer{}, ErrUnreachable
	}
	l.last++
	c.ID = l.last
	l.waiting[c.ID] = answered
	_ = l.conn.SetWriteDeadline(deadlineAfter(sendWithin))
	err := sendMessage(l.conn, c)
	l.mu.Unlock()
	if err != nil {
		l.forget(c.ID, answered)
		return linkAnswer{}, ErrUnreachable
	}
	select {
	case answer, isOpen := <-answered:
		if !isOpen {
			return answer, ErrUnreachable
		}
		return answer, failureOf(answer.Failure)
	case <-ctx.Done():
		l.forget(c.ID, answered)
		return linkAnswer{}, ctx.Err()
	}
}

// forget drops a call, and the socket of an answer that has come meanwhile.
func (l *PeerLink) forget(id uint64, answered <-chan linkAnswer) {
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
	answer, err := l.call(ctx, peerCall{Name: name})
	return answer.Address, err
}

// Dial implements Switchboard.
func (l *PeerLink) Dial(ctx context.Context, protocol string, from uint16, to netip.AddrPort) (*os.File, error) {
	answer, err := l.call(ctx, peerCall{Protocol: protocol, From: from, To: to})
	if err == nil && answer.socket == nil {
		err = ErrProtocol
	}
	return answer.socket, err
}

// serveJoin gives the machine a link.
func serveJoin(w http.ResponseWriter, p Peer) {
	if conn, err := takeConnection(w); err == nil {
		p.Join(newPeerLink(conn))
	}
}

// serveAccept gives the machine a connection of another one.
func serveAccept(ctx context.Context, w http.ResponseWriter, p Peer) {
	conn, err := takeConnection(w)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadlineAfter(CallWithin))
	var c PeerConn
	sockets, err := receiveMessage(conn, &c, 1)
	defer closeFiles(sockets)
	if err == nil && len(sockets) != 1 {
		err = errRequest
	}
	if err == nil {
		ctx, cancel := context.WithTimeout(ctx, CallWithin)
		defer cancel()
		err = p.Accept(ctx, c, sockets[0])
	}
	_ = sendMessage(conn, peerAnswer{Failure: failureName(err)})
}

// Accept calls Peer.Accept.
func (c *Client) Accept(ctx context.Context, from PeerConn, socket *os.File) error {
	var answer peerAnswer
	if err := c.exchange(ctx, acceptPath, from, &answer, socket); err != nil {
		return err
	}
	return failureOf(answer.Failure)
}

// exchange sends a message with sockets, and receives the answer.
func (c *Client) exchange(ctx context.Context, path string, message, answer any, sockets ...*os.File) error {
	conn, err := c.takeOver(ctx, http.MethodPost, path)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_ = conn.SetDeadline(deadlineAfter(CallWithin))
	err = sendMessage(conn, message, sockets...)
	if err == nil {
		var none []*os.File
		none, err = receiveMessage(conn, answer, 1)
		closeFiles(none)
	}
	if err != nil {
		return explainError(err)
	}
	return nil
}

// Connect answers the machine's calls by a switchboard, until the connection or ctx ends.
func (c *Client) Connect(ctx context.Context, to Switchboard) error {
	conn, err := c.takeOver(ctx, http.MethodPost, joinPath)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var sending sync.Mutex
	var calls sync.WaitGroup
	defer calls.Wait()
	places, pace := make(chan struct{}, maxPeerCalls), rate.NewLimiter(peerCallsASecond, maxPeerCalls)
	for {
		var call peerCall
		sockets, err := receiveMessage(conn, &call, 1)
		closeFiles(sockets)
		if err != nil {
			return explainError(err)
		}
		if err := pace.Wait(ctx); err != nil {
			return err
		}
		places <- struct{}{}
		calls.Go(func() {
			defer func() { <-places }()
			answer, sockets := answerPeer(ctx, to, call)
			defer closeFiles(sockets)
			sending.Lock()
			defer sending.Unlock()
			_ = conn.SetWriteDeadline(deadlineAfter(sendWithin))
			if err := sendMessage(conn, answer, sockets...); err != nil {
				_ = conn.Close()
			}
		})
	}
}

// answerPeer answers one call, and returns the socket that goes with the answer to a dial.
func answerPeer(ctx context.Context, to Switchboard, call peerCall) (answer peerAnswer, sockets []*os.File) {
	ctx, cancel := context.WithTimeout(ctx, CallWithin)
	defer cancel()
	var err error
	answer.ID = call.ID
	if call.Name != "" {
		answer.Address, err = to.Lookup(ctx, call.Name)
	} else {
		var socket *os.File
		if socket, err = to.Dial(ctx, call.Protocol, call.From, call.To); err == nil {
			sockets = []*os.File{socket}
		}
	}
	answer.Failure = failureName(err)
	return answer, sockets
}
