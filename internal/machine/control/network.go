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

// Port is a port of the host that is forwarded to a port of the guest.
type Port struct {
	Protocol string `json:"protocol"` // tcp or udp
	// HostIP is an address of the host, empty for all addresses.
	HostIP   string `json:"hostIP,omitempty"`
	HostPort uint16 `json:"hostPort"`
	Port     uint16 `json:"port"`
}

func (p Port) isValid() bool {
	_, err := netip.ParseAddr(p.HostIP)
	return (p.Protocol == TCP || p.Protocol == UDP) && (p.HostIP == "" || err == nil)
}

// Listen opens a listening socket on a port of the host, for GiveSockets, and returns the port's number. A HostPort of 0
// means any free port. Without a HostIP the socket also accepts IPv6.
func Listen(ctx context.Context, p Port) (socket *os.File, port uint16, err error) {
	var config net.ListenConfig
	address := net.JoinHostPort(p.HostIP, strconv.Itoa(int(p.HostPort)))
	if p.Protocol == UDP {
		config.Control = requestPacketInfo
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

// requestPacketInfo makes the kernel report the destination address of each packet (ip(7), ipv6(7)). The answer must come
// from that address, or its receiver drops it.
func requestPacketInfo(network, _ string, socket syscall.RawConn) (err error) {
	level, option := unix.IPPROTO_IP, unix.IP_PKTINFO
	if network == "udp6" {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO
	}
	return errors.Join(socket.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
}

// AnswerInfo returns the control message for an answer to a UDP packet that was received with info. It makes the answer
// leave from the packet's destination address, and clears the interface, which the kernel's routes then choose.
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

// Revision orders the wanted configurations of a machine's edge. Those of a later leader come after all of an earlier
// leader.
type Revision struct {
	// Epoch is the leader's epoch, and Number grows with each change.
	Epoch  uint64 `json:"epoch"`
	Number uint64 `json:"number"`
}

// IsBefore reports whether the revision is older than another.
func (r Revision) IsBefore(other Revision) bool {
	return cmp.Or(cmp.Compare(r.Epoch, other.Epoch), cmp.Compare(r.Number, other.Number)) < 0
}

// Next returns the revision of the next change. leaderEpoch is 0 if the change is not made by a leader, which keeps the
// epoch of r.
func (r Revision) Next(leaderEpoch uint64) Revision {
	return Revision{Epoch: max(r.Epoch, leaderEpoch), Number: r.Number + 1}
}

// Wanted is the configuration that a machine's edge should have.
type Wanted struct {
	Revision Revision `json:"revision"`
	// Ports are the ports of the host to serve.
	Ports []Port `json:"ports,omitempty"`
	// Egress is where the guest may connect to.
	Egress Egress `json:"egress"`
}

// Network is the network of a machine on this host.
type Network interface {
	// DialGuest connects to a TCP port of the guest.
	DialGuest(ctx context.Context, port uint16) (net.Conn, error)
	// SetWanted changes the wanted configuration of the machine's edge. It closes ports, and resets connections, that are
	// no longer allowed, and returns the ports that are still served. It fails with failure.ErrStale if the machine has a
	// later revision.
	SetWanted(ctx context.Context, w Wanted) (served []Port, err error)
	// GiveSockets gives the machine, which cannot open ports itself, a listening socket for each port. The caller closes
	// the sockets afterwards. Ports that are already served keep their sockets. GiveSockets fails with failure.ErrStale,
	// and changes nothing, unless revision is the machine's revision.
	GiveSockets(ctx context.Context, revision Revision, sockets map[Port]*os.File) error
}

var _ Network = (*Client)(nil)

// Paths of the calls of Network. SetWanted is an HTTP call; the others take over their connection.
const (
	dialPath    = "/v1/dial"
	wantedPath  = "/v1/wanted"
	socketsPath = "/v1/sockets"
)

// hijackedHeader is the header of the answer that ends HTTP on a connection.
const hijackedHeader = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"

// maxPorts is how many ports a machine has at most.
const maxPorts = 64

// socketsMessage is the request of GiveSockets. The sockets are sent with it, in the order of Ports.
type socketsMessage struct {
	Revision Revision `json:"revision"`
	Ports    []Port   `json:"ports"`
}

// servedPorts is the answer of SetWanted.
type servedPorts struct {
	Ports []Port `json:"ports,omitempty"`
}

// areValid reports whether all ports are valid, and at most maxPorts.
func areValid(ports []Port) bool {
	return len(ports) <= maxPorts && !slices.ContainsFunc(ports, func(p Port) bool { return !p.isValid() })
}

// takeConnection answers a request with hijackedHeader, and returns the connection, which the caller closes.
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
		_, err = taken.Write([]byte(hijackedHeader))
	}
	if err == nil {
		err = taken.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(err, taken.Close())
	}
	return taken, nil
}

// joinBuffer is the size of the buffers that copy a connection to the guest, in bytes.
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

// Join copies data between two connections in both directions, until both directions have ended, and closes the
// connections. An end in one direction leaves the other open. An error resets both connections.
func Join(a, b net.Conn, bufferSize int) {
	Carry(a, b, bufferSize)
	_, _ = a.Close(), b.Close()
}

// Carry is Join, but does not close the connections.
func Carry(a, b net.Conn, bufferSize int) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyDirection(a, b, bufferSize)
	}()
	copyDirection(b, a, bufferSize)
	<-done
}

// copyDirection copies from reader to writer. It passes on the end of the data, and resets both connections after an error.
func copyDirection(writer, reader net.Conn, bufferSize int) {
	_, err := io.CopyBuffer(struct{ io.Writer }{writer}, struct{ io.Reader }{reader}, make([]byte, bufferSize))
	if half, ok := writer.(interface{ CloseWrite() error }); ok && err == nil {
		_ = half.CloseWrite()
		return
	}
	Reset(writer)
	Reset(reader)
}

// Reset closes a connection so that the other end gets an error in place of an orderly end.
func Reset(conn net.Conn) {
	switch c := conn.(type) {
	case *net.TCPConn:
		resetTCP(c)
	case interface{ Reset() }:
		c.Reset()
	}
	_ = conn.Close()
}

// resetTCP resets a connection with connect(2) and AF_UNSPEC. It does not use SO_LINGER, which confine.DenyStarts denies.
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

// serveSockets serves GiveSockets.
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
	_ = SendMessage(conn, outcome{Failure: failure.NameOf(err)})
}

// CloseFiles closes files, and ignores errors, such as of files that were passed to another process.
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
	var answer outcome
	if err := c.exchangeMessage(ctx, socketsPath, m, &answer, files...); err != nil {
		return err
	}
	return failure.ByName(answer.Failure)
}

// takeOver makes a request, and returns the connection after hijackedHeader.
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
		err = readHijackedHeader(conn)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if !stop() { // ctx has ended, and set a deadline on conn
		return nil, errors.Join(explainError(ctx.Err()), conn.Close())
	}
	return taken, nil
}

// readHijackedHeader reads exactly hijackedHeader. If the machine refuses the request, it returns the failure in the answer.
func readHijackedHeader(reader io.Reader) error {
	head := make([]byte, 0, len(hijackedHeader))
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		var b [1]byte
		if _, err := io.ReadFull(reader, b[:]); err != nil {
			return explainError(err)
		}
		if head = append(head, b[0]); len(head) > maxHeader {
			return failure.ErrProtocol
		}
	}
	if string(head) == hijackedHeader {
		return nil
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), io.LimitReader(reader, maxAnswer))), nil)
	if err != nil {
		return failure.ErrProtocol
	}
	defer func() { _ = response.Body.Close() }()
	return cmp.Or(readAnswer(response, nil), failure.ErrProtocol)
}
