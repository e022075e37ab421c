// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"

	"github.com/gorilla/websocket"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// TestAbortedConnection checks that the connection to the VM ends when a local client aborts its connection, even if the
// server in the VM does not close it.
func TestAbortedConnection(t *testing.T) {
	t.Parallel()
	target := serve(t, func(w http.ResponseWriter, r *http.Request) {
		upgrader := websocket.Upgrader{Subprotocols: []string{streams.Protocol}}
		if ws, err := upgrader.Upgrade(w, r, nil); err == nil {
			_, _ = io.Copy(io.Discard, ws.NetConn())
		}
	})
	client, err := Discover(t.Context(), serveAPI(t, target.URL, target.ca()))
	assert.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is answered at once
	assert.NoError(t, err)
	defer func() { _ = l.Close() }()
	browser, err := net.Dial("tcp", l.Addr().String()) //nolint:noctx // the same
	assert.NoError(t, err)
	conn, err := l.Accept()
	assert.NoError(t, err)
	end := make(chan error, 1)
	go func() {
		end <- (&PortForwarder{Client: client, Namespace: "ns", Name: "vm"}).Connect(t.Context(), 80, conn)
	}()
	_, err = io.WriteString(browser, "hello")
	assert.NoError(t, err)
	tcp, _ := browser.(*net.TCPConn)
	assert.NoError(t, tcp.SetLinger(0)) // Close resets the connection
	assert.NoError(t, tcp.Close())
	assert.ErrorIs(t, "the end", assert.Receive(t, "the end", end), syscall.ECONNRESET)
}
