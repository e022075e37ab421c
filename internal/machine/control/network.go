// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/failure"
)

// Port is a port of the host that leads to one of the guest.
type Port struct {
	Protocol string `json:"protocol"` // tcp or udp
	// HostIP is the host's address, empty for all.
	HostIP   string `json:"hostIP,omitempty"`
	HostPort uint16 `json:"hostPort"`
	Port     uint16 `json:"port"`
}

// isValid reports whether a port can have these values.
func (p Port) isValid() bool {
	_, err := netip.ParseAddr(p.HostIP)
	return (p.Protocol == TCP || p.Protocol == UDP) && (p.HostIP == "" || err == nil)
}

// Listen opens a port of the host for GiveSockets, any free one where its number is 0, and returns the number. Without an
// address it is open for IPv6 too.
func Listen(ctx context.Context, p Port) (socket *os.File, port uint16, err error) {
	var config net.ListenConfig
	address := net.JoinHostPort(p.HostIP, strconv.Itoa(int(p.HostPort)))
	if p.Protocol == UDP {
		config.Control = askPacketInfo
		conn, err := config.ListenPacket(ctx, "udp", address)
		if err != nil {
			return nil, 0, err
		}
		socket, err = conn.(*net.UDPConn).File()
		return socket, uint16(conn.LocalAddr().(*net.UDPAddr).Port), errors.Join(err, conn.Close()) //nolint:gosec // a port
	}
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, 0, err
	}
	socket, err = listener.(*net.TCPListener).File()
	return socket, uint16(listener.Addr().(*net.TCPAddr).Port), errors.Join(err, listener.Close()) //nolint:gosec // a port
}

// askPacketInfo has the kernel say to which address of this host each packet was sent (ip(7), ipv6(7)), so that the answer
// comes from it. An answer from another one is not taken.
func askPacketInfo(network, _ string, socket syscall.RawConn) (err error) {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if network == "udp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	return errors.Join(socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
}

// AnswerInfo returns what to send with an answer to a packet that came with info by a socket of Listen, so that it leaves
// from the address that the packet was sent to. By which interface is left to the routes.
func AnswerInfo(info []byte) []byte {
	header, data, _, err := unix.ParseOneSocketControlMessage(info)
	switch {
	case err != nil:
		return nil
	case header.Level == unix.IPPROTO_IP && len(data) == unix.SizeofInet4Pktinfo:
		clear(data[:4]) // ipi_ifindex
	case header.Level == unix.IPPROTO_IPV6 && len(data) == unix.SizeofInet6Pktinfo:
		clear(data[16:]) // ipi6_ifindex
	default:
		return nil
	}
	return info
}

// Revision orders the wanted configurations of a machine's edge. A later leader's comes after all of an earlier one.
type Revision struct {
	// Epoch is the leader's epoch, and Number grows with each change.
	Epoch  uint64 `json:"epoch"`
	Number uint64 `json:"number"`
}

// IsBefore reports whether the revision is older than another.
func (r Revision) IsBefore(other Revision) bool {
	return cmp.Or(cmp.Compare(r.Epoch, other.Epoch), cmp.Compare(r.Number, other.Number)) < 0
}

// Next returns the revision of the next change, which a leader of an epoch makes. A change without a leader, whose epoch
// is 0, keeps the epoch of the last one.
func (r Revision) Next(leader uint64) Revision {
	return Revision{Epoch: max(r.Epoch, leader), Number: r.Number + 1}
}

// Wanted describes the edge that a machine should have.
type Wanted struct {
	Revision Revision `json:"revision"`
	// Ports are the ports of the host that it serves.
	Ports []Port `json:"ports,omitempty"`
	// Egress is where the guest may connect to.
	Egress Egress `json:"egress"`
}

// Network is the network of a machine on this host.
type Network interface {
	// DialGuest connects to a TCP port of the guest.
	DialGuest(ctx context.Context, port uint16) (net.Conn, error)
	// SetWanted changes the wanted configuration of the machine's edge, and returns the ports that it serves: of those that were
	// wanted before, those that still are. Connections to where the guest may not connect any more are reset. What is
	// older than what the machine knows changes nothing, and fails with failure.ErrStale.
	SetWanted(ctx context.Context, w Wanted) (served []Port, err error)
	// GiveSockets gives the machine, which cannot open ports, a listening socket for each of some ports. The caller
	// closes them afterwards. Those that it serves already are left as they are; it fails with failure.ErrStale, and serves
	// none of them, if they are not of the revision that it knows.
	GiveSockets(ctx context.Context, of Revision, sockets map[Port]*os.File) error
}

var _ Network = (*Client)(nil)

// Paths of the calls of Network. SetWanted is one of HTTP, and the others take over their connection.
const (
	dialPath    = "/v1/dial"
	wantedPath  = "/v1/wanted"
	socketsPath = "/v1/sockets"
)

// takenHead is the header of an answer after which the connection leaves HTTP.
const takenHead = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

// maxPorts is how many ports a machine has at most.
const maxPorts = 64

// socketsMessage is the message of a client. The socket of each port comes with it.
type socketsMessage struct {
	Revision Revision `json:"revision"`
	Ports    []Port   `json:"ports"`
}

// servedPorts is the answer to a change of the wanted configuration.
type servedPorts struct {
	Ports []Port `json:"ports,omitempty"`
}

// areValid reports whether ports can have these values, and are not more than a machine may have.
func areValid(ports []Port) bool {
	return len(ports) <= maxPorts && !slices.ContainsFunc(ports, func(p Port) bool { return !p.isValid() })
}

// takeConnection answers a request, after which the connection is the caller's.
func takeConnection(w http.ResponseWriter) (*net.UnixConn, error) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, err
	}
	taken, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errRequest, conn.Close())
	}
	err = taken.SetDeadline(deadlineAfter(sendWithin))
	if err == nil {
		_, err = taken.Write([]byte(takenHead))
	}
	if err == nil {
		err = taken.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, taken.Close())
	}
	return taken, nil
}

// joinBuffer is how much of a connection to the guest is carried on at a time, in bytes.
const joinBuffer = 32 << 10

// serveDial connects a client to a port of the guest.
func serveDial(w http.ResponseWriter, r *http.Request, n Network) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		sendAnswer(w, nil, errRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), CallWithin)
	defer cancel()
	guest, err := n.DialGuest(ctx, uint16(port))
	if err != nil {
		sendAnswer(w, nil, fmt.Errorf("%w: %w", failure.ErrNoAnswer, err))
		return
	}
	client, err := takeConnection(w)
	if err != nil {
		_ = guest.Close()
		return
	}
	Join(client, guest, joinBuffer)
}

// Join carries data both ways, with buffers of a size in bytes, until both connections have ended. An end of one
// direction leaves the other open, and an error resets both.
func Join(a, b net.Conn, size int) {
	Carry(a, b, size)
	_, _ = a.Close(), b.Close()
}

// Carry is Join for a caller who closes the connections.
func Carry(a, b net.Conn, size int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyTo(a, b, size)
	}()
	copyTo(b, a, size)
	<-done
}

// copyTo copies what comes from one connection to another.
func copyTo(writer, reader net.Conn, size int) {
	_, err := io.CopyBuffer(struct{ io.Writer }{writer}, struct{ io.Reader }{reader}, make([]byte, size))
	if half, ok := writer.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	Reset(writer)
	Reset(reader)
}

// Reset ends a connection so that the other end learns that it was cut off.
func Reset(conn net.Conn) {
	switch c := conn.(type) {
	case *net.TCPConn:
		resetTCP(c)
	case interface{ Reset() }:
		c.Reset()
	}
	_ = conn.Close()
}

// resetTCP resets a connection (connect(2) with AF_UNSPEC). SO_LINGER could do it too, but confine.DenyStarts denies it.
func resetTCP(conn *net.TCPConn) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		to := unix.RawSockaddr{Family: unix.AF_UNSPEC}
		_, _, _ = unix.Syscall(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&to)), unsafe.Sizeof(to)) //nolint:gosec // a system call
	})
}

// serveSockets gives the machine sockets of ports.
func serveSockets(ctx context.Context, w http.ResponseWriter, n Network) {
	conn, err := takeConnection(w)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(deadlineAfter(sendWithin))
	var m socketsMessage
	files, err := ReceiveMessage(conn, &m, maxPorts)
	defer CloseFiles(files...)
	if err == nil && len(files) != len(m.Ports) {
		err = errRequest
	}
	if err == nil {
		sockets := map[Port]*os.File{}
		for i, p := range m.Ports {
			sockets[p] = files[i]
		}
		err = n.GiveSockets(ctx, m.Revision, sockets)
	}
	_ = SendMessage(conn, ending{Failure: failure.NameOf(err)})
}

// CloseFiles closes files whose errors do not matter, such as those that were passed to another process.
func CloseFiles(files ...*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// DialGuest implements Network.
func (c *Client) DialGuest(ctx context.Context, port uint16) (net.Conn, error) {
	return c.takeOver(ctx, http.MethodGet, dialPath+"?port="+strconv.Itoa(int(port)))
}

// SetWanted implements Network.
func (c *Client) SetWanted(ctx context.Context, w Wanted) (served []Port, err error) {
	var answer servedPorts
	if err := c.makeCall(ctx, http.MethodPost, wantedPath, w, &answer); err != nil {
		return nil, err
	}
	if !areValid(answer.Ports) {
		return nil, failure.ErrProtocol
	}
	return answer.Ports, nil
}

// GiveSockets implements Network.
func (c *Client) GiveSockets(ctx context.Context, revision Revision, sockets map[Port]*os.File) error {
	m := socketsMessage{Revision: revision}
	var files []*os.File
	for p, f := range sockets {
		m.Ports, files = append(m.Ports, p), append(files, f)
	}
	var answer ending
	if err := c.exchangeMessage(ctx, socketsPath, m, &answer, files...); err != nil {
		return err
	}
	return failure.ByName(answer.Failure)
}

// takeOver makes a request and returns its connection once that has left HTTP.
func (c *Client) takeOver(ctx context.Context, method, path string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, CallWithin+connectWithin)
	defer cancel()
	conn, err := c.dialer.NetDialContext(ctx, "", "")
	if err != nil {
		return nil, explainError(err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	taken, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(failure.ErrProtocol, conn.Close())
	}
	var head bytes.Buffer
	_, _ = fmt.Fprintf(&head, "%s %s HTTP/1.1\r\nHost: machine\r\n", method, path)
	_ = c.header.Write(&head)
	_, err = conn.Write(append(head.Bytes(), "\r\n"...))
	if err == nil {
		err = readTakenHead(conn)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if !stop() { // its deadline was changed
		return nil, errors.Join(explainError(ctx.Err()), conn.Close())
	}
	return taken, nil
}

// readTakenHead reads exactly the header of an answer, or the answer of a machine that refuses.
func readTakenHead(reader io.Reader) error {
	head := make([]byte, 0, len(takenHead))
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		var b [1]byte
		if _, err := io.ReadFull(reader, b[:]); err != nil {
			return explainError(err)
		}
		if head = append(head, b[0]); len(head) > maxHeader {
			return failure.ErrProtocol
		}
	}
	if string(head) == takenHead {
		return nil
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), io.LimitReader(reader, maxAnswer))), nil)
	if err != nil {
		return failure.ErrProtocol
	}
	defer func() { _ = response.Body.Close() }()
	return cmp.Or(readAnswer(response, nil), failure.ErrProtocol)
}
