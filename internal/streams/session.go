// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/terminal"
)

// maxMessage is the largest message that a client may send; those of Kubernetes send at most 32 KiB.
const maxMessage = 256 << 10

// upgrader opens WebSockets. Browsers, which may have a client certificate, may do so only
// from a page of the same host.
var upgrader = websocket.Upgrader{
	Subprotocols: []string{streams.Protocol}, ReadBufferSize: 4 << 10, WriteBufferSize: terminal.ChunkSize + 16, WriteBufferPool: &sync.Pool{},
}

// session is the WebSocket of a stream.
type session struct {
	*terminal.Stream

	call *call
	// stdin is the input of the client, io.EOF once it has closed that channel.
	stdin *io.PipeReader
	sizes chan terminal.Size // the latest
}

// checkHandshake refuses a request that cannot become a WebSocket, before an engine is asked
// for something.
func checkHandshake(r *http.Request, stream streams.Stream) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return badRequest("%s needs a WebSocket", stream)
	}
	if asked := websocket.Subprotocols(r); !slices.Contains(asked, streams.Protocol) {
		return badRequest("the subprotocols of the WebSocket are %.200q: one must be %s", asked, streams.Protocol)
	}
	if !sameOrigin(r) {
		return newStatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "the header Origin is %.200q: it must have the host %.200q, or be missing", r.Header.Get("Origin"), r.Host)
	}
	return nil
}

// sameOrigin returns whether a request is not one of another host's page.
func sameOrigin(r *http.Request) bool {
	if len(r.Header["Origin"]) == 0 {
		return true
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && strings.EqualFold(origin.Host, r.Host)
}

// overWebSocket opens the WebSocket and runs a stream over it, whose end it sends.
func (c *call) overWebSocket(run func(*session) error) error {
	own := upgrader
	own.Error = func(w http.ResponseWriter, _ *http.Request, code int, err error) {
		Refuse(w, newStatusError(int32(code), "", "%v", err)) //nolint:gosec // an HTTP status
	}
	ws, err := own.Upgrade(c.w, c.r, nil)
	c.answered, c.hijacked = err == nil, true
	if err != nil {
		return errClientLeft // it has its answer
	}
	s := &session{Stream: newTerminal(c, ws), call: c, sizes: make(chan terminal.Size, 1)}
	var input *io.PipeWriter
	s.stdin, input = io.Pipe()
	go s.ServeInput(input, s.sizes)
	err = c.finishStream(run(s))
	_ = s.stdin.Close() // what is received from now on is discarded
	if errors.Is(err, errClientLeft) {
		s.Close()
	} else {
		s.Finish(lastMessage(err))
	}
	return err
}

// newTerminal returns the stream over a WebSocket.
func newTerminal(c *call, ws *websocket.Conn) *terminal.Stream {
	return terminal.New(c.ctx, c.end, ws, terminal.Settings{
		Protocol: terminal.Kubernetes, Clock: c.Clock, MaxMessage: maxMessage, Explain: explainEnd,
		PingEvery: c.times.ping, SilentWithin: c.times.silence, SendWithin: c.times.write, LingerFor: c.times.linger,
		Count: func(received, sent int) {
			c.in.Add(int64(received))
			c.out.Add(int64(sent))
			c.recordTraffic()
		},
	})
}

// joinConnection copies between the client and conn until conn was read to its end. It needs conn to be closed when
// the stream ends.
func (s *session) joinConnection(conn io.ReadWriteCloser, ends ending) error {
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if err := terminal.Copy(conn, s.stdin); err != nil {
			s.call.end(ends.onError(err))
		} else if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	err := terminal.Copy(s.Writer(terminal.Output), conn)
	if err == nil {
		err = ends.atEOF
	} else {
		err = ends.onError(err)
	}
	err = s.call.finishStream(err) // before stdin is closed, which is an error for the other copy
	_ = s.stdin.Close()
	<-copied
	return err
}

// lastMessage returns the Status. Clients in Go show only its message, so that has the reason too.
func lastMessage(end error) []byte {
	status := statusOf(end)
	if status.Reason != "" && status.Reason != remotecommand.NonZeroExitCodeReason {
		status.Message = string(status.Reason) + ": " + status.Message
	}
	text, _ := json.Marshal(status) // a Status can be marshalled
	return text
}

// explainEnd says why the connection to a client has ended.
func explainEnd(err error) error {
	if violation, ok := errors.AsType[terminal.ViolationError](err); ok {
		return badRequest("%s", string(violation))
	}
	if errors.Is(err, terminal.ErrSilent) {
		return errSilent
	}
	return writeError(err)
}
