// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/usernet"
)

var ruleFailed = regexp.MustCompile(`(?i)could not set up host forwarding rule '([^']*)'`)

// findTaken returns the index of the forward that QEMU ended over, -1 if there is none.
func findTaken(output string, forwards []launch.Forward) int {
	said := ruleFailed.FindStringSubmatch(output)
	return slices.IndexFunc(forwards, func(f launch.Forward) bool { return said != nil && said[1] == f.HostfwdRule() })
}

// FreePort returns the host port of a forward if it is free, or any free one where that is
// 0. It tries to open the port.
func FreePort(ctx context.Context, f launch.Forward) (int32, error) {
	var config net.ListenConfig
	address := net.JoinHostPort(cmp.Or(f.HostIP, net.IPv4zero.String()), strconv.Itoa(int(f.HostPort)))
	if f.Protocol == "udp" {
		conn, err := config.ListenPacket(ctx, "udp4", address)
		if err != nil {
			return 0, err
		}
		return portOf(conn.LocalAddr()), conn.Close()
	}
	listener, err := config.Listen(ctx, "tcp4", address)
	if err != nil {
		return 0, err
	}
	return portOf(listener.Addr()), listener.Close()
}

func portOf(a net.Addr) int32 {
	switch a := a.(type) {
	case *net.TCPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	case *net.UDPAddr:
		return int32(a.Port) //nolint:gosec // 16 bits
	}
	return 0
}

// Intervals between two checks of how far a connection has come.
const (
	firstCheck = 5 * time.Millisecond
	lastCheck  = 200 * time.Millisecond
)

// GuestPort is a TCP port of a guest, which a host port leads to.
type GuestPort struct {
	Machine Machine
	Clock   clock.Clock
	Forward launch.Forward
}

// Probe returns nil once the port has accepted a connection.
func (p GuestPort) Probe(ctx context.Context) error {
	conn, err := p.connect(ctx, true)
	if err != nil {
		return err
	}
	_ = conn.Close() // which proves no less
	return nil
}

// Dial connects to the port. Only a connection that is in the table of this machine's QEMU
// counts: if the machine ends meanwhile, the host port may belong to something else.
func (p GuestPort) Dial(ctx context.Context) (net.Conn, error) { return p.connect(ctx, false) }

// connect connects to the port. That the host port accepts the connection proves nothing:
// QEMU's network accepts every connection to a host port and passes it on later, even to a
// guest that has not booted yet. So it asks QEMU how far the connection has come.
func (p GuestPort) connect(ctx context.Context, isAnswerEnough bool) (net.Conn, error) {
	f := p.Forward
	address := cmp.Or(f.HostIP, usernet.RandomLoopback())
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", net.JoinHostPort(address, strconv.Itoa(int(f.HostPort))))
	if err != nil {
		return nil, err
	}
	answered, isOver := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(isOver)
		answered <- usernet.WaitReadable(conn)
	}()
	err = p.waitConnected(ctx, conn, answered, isAnswerEnough)
	// The caller reads once nothing else does.
	err = cmp.Or(err, conn.SetReadDeadline(time.Unix(1, 0)))
	<-isOver
	err = cmp.Or(err, conn.SetReadDeadline(time.Time{}))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("port %d of the guest, which host port %d leads to, %w", f.Port, f.HostPort, err)
	}
	return conn, nil
}

// waitConnected waits until the guest has taken a connection. A guest that sends data first
// has taken it too, if isAnswerEnough: then answered gets nil.
func (p GuestPort) waitConnected(ctx context.Context, conn net.Conn, answered <-chan error, isAnswerEnough bool) error {
	timer := p.Clock.NewTimer(firstCheck)
	defer timer.Stop()
	wasAsked := false
	for wait := firstCheck; ; wait = min(2*wait, lastCheck) {
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return fmt.Errorf("took no connection: %w", ctx.Err())
		case err := <-answered:
			if err != nil {
				return fmt.Errorf("refused the connection: %w", err)
			}
			if isAnswerEnough {
				return nil
			}
			answered = nil
		case <-timer.C():
		}
		table, err := p.connectionTable(ctx)
		if err != nil && wasAsked && ctx.Err() != nil {
			continue // to the error that does not depend on where the time ran out
		}
		if err != nil {
			return fmt.Errorf("cannot be asked about: %w", err)
		}
		if p.isAnswered(table, conn) {
			return nil
		}
		wasAsked = true
	}
}

// connectionTable returns QEMU's table of the connections of its user network.
func (p GuestPort) connectionTable(ctx context.Context) (table string, err error) {
	err = p.Machine.Execute(ctx, "human-monitor-command", map[string]string{"command-line": "info usernet"}, &table)
	return table, err
}

// isAnswered reports whether the guest has answered a connection. A connection to a port
// on all addresses went to an address that no other uses. On a single address others may
// be connected too, so QEMU's end of this one is found by its descriptor.
func (p GuestPort) isAnswered(table string, conn net.Conn) bool {
	address, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
	if p.Forward.HostIP == "" {
		return usernet.IsConnected(table, address, "")
	}
	fd := usernet.FindDescriptor(p.Machine.PID(), conn)
	return fd != "" && usernet.IsConnected(table, address, fd)
}
