// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package usernet

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestIsConnected(t *testing.T) {
	t.Parallel()
	const table = "Hub -1 (net):\r\n" +
		"  Protocol[State]    FD  Source Address  Port   Dest. Address  Port RecvQ SendQ\r\n" +
		"  TCP[%s]      12       127.1.2.3 45081       10.0.2.15    80     0     0\r\n" +
		"  TCP[ESTABLISHED]      13       127.1.2.30 45081       10.0.2.15    80     0     0\r\n" +
		"  TCP[HOST_FORWARD]   8               * 45081       10.0.2.15    80     0     0\r\n"
	for state, want := range map[string]bool{"ESTABLISHED": true, "CLOSE_WAIT": true, "SYN_SENT": false, "NONE": false} {
		if got := IsConnected(fmt.Sprintf(table, state), "127.1.2.3", ""); got != want {
			t.Errorf("%s: got %t", state, got)
		}
	}
	if IsConnected(fmt.Sprintf(table, "ESTABLISHED"), "127.1.2.4", "") || IsConnected("", "127.1.2.3", "") ||
		IsConnected(fmt.Sprintf(table, "ESTABLISHED"), "127.1.2.3", "13") {
		t.Error("a connection that is not in the table is taken for one that was answered")
	}
	if IsConnected(table, RandomLoopback(), "") || !strings.HasPrefix(RandomLoopback(), "127.") {
		t.Error("the address is not one of the host's own")
	}
}

// TestProbeOfOneAddress checks that, on a single address, the probe looks at its own
// connection although QEMU's table has those of others too.
func TestProbeOfOneAddress(t *testing.T) {
	t.Parallel()
	listener := framework.Listen(t, "tcp4", "127.0.0.1:0")
	var ends [2]net.Conn
	for i := range ends {
		end, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", listener.Addr().String())
		assert.NoError(t, err)
		ends[i] = end
		taken, err := listener.Accept()
		assert.NoError(t, err)
		defer func() { _, _ = ends[i].Close(), taken.Close() }()
	}
	sockets := []string{acceptedSocket(ends[0]), acceptedSocket(ends[1])}
	if sockets[0] == "" || sockets[0] == "0" || sockets[0] == sockets[1] {
		t.Errorf("the sockets are %q", sockets)
	}
}

// TestWaitReadable checks that what the other end sends stays there, and that its end is
// noticed.
func TestWaitReadable(t *testing.T) {
	t.Parallel()
	listener := framework.Listen(t, "tcp4", "127.0.0.1:0")
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp4", listener.Addr().String())
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	taken, err := listener.Accept()
	assert.NoError(t, err)
	assert.NoError(t, conn.SetReadDeadline(time.Unix(1, 0)))
	assert.ErrorIs(t, "with nothing there", WaitReadable(conn), os.ErrDeadlineExceeded)
	assert.NoError(t, conn.SetReadDeadline(time.Time{}))
	assert.NoError(t, assert.ErrorOf(io.WriteString(taken, "hello")))
	assert.NoError(t, WaitReadable(conn))
	assert.NoError(t, taken.Close())
	if text, err := io.ReadAll(conn); string(text) != "hello" || err != nil {
		t.Errorf("left is %q, %v", text, err)
	}
	assert.ErrorIs(t, "at its end", WaitReadable(conn), io.EOF)
}
