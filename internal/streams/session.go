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
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// maxMessage is the largest message that a client may send, in bytes. Clients of Kubernetes send at most 32 KiB.
const maxMessage = 256 << 10

// upgrader opens WebSockets. By default it refuses a browser on a page of another host: the browser
// may have a client certificate that the page must not use.
var upgrader = websocket.Upgrader{
	Subprotocols: []string{streams.Protocol}, ReadBufferSize: 4 << 10, WriteBufferSize: terminal.ChunkSize + 16, WriteBufferPool: &sync.Pool{},
}

// session is the WebSocket of a stream.
type session struct {
	*terminal.Stream

	call *call
	// stdin is the input from the client. It ends with io.EOF when the client closes the channel.
	stdin *io.PipeReader
	sizes chan terminal.Size // has the latest size of the client's terminal
}

// checkHandshake returns an error if the request cannot become a WebSocket. Callers check this before
// they call an engine.
func checkHandshake(r *http.Request, stream streams.Stream) error {
	if !websocket.IsWebSocketUpgrade(r) {
		return badRequest("%s needs a WebSocket", stream)
	}
	if asked := websocket.Subprotocols(r); !slices.Contains(asked, streams.Protocol) {
		return badRequest("the subprotocols of the WebSocket are %.200q: one must be %s", asked, streams.Protocol)
	}
	if !isSameOrigin(r) {
		return newStatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "the header Origin is %.200q: it must have the host %.200q, or be missing", r.Header.Get("Origin"), r.Host)
	}
	return nil
}

// isSameOrigin reports whether the request comes from a page of this host, or not from a page.
func isSameOrigin(r *http.Request) bool {
	if len(r.Header["Origin"]) == 0 {
		return true
	}
	origin, err := url.Parse(r.Header.Get("Origin"))
	return err == nil && strings.EqualFold(origin.Host, r.Host)
}

// serveWebSocket opens the WebSocket, runs a stream over it, and then tells the client how the stream ended.
func (c *call) serveWebSocket(run func(*session) error) error {
	own := upgrader
	own.Error = func(w http.ResponseWriter, _ *http.Request, code int, err error) {
		Refuse(w, newStatusError(int32(code), "", "%v", err)) //nolint:gosec // an HTTP status
	}
	ws, err := own.Upgrade(c.w, c.r, nil)
	c.answered, c.hijacked = err == nil, true
	if err != nil {
		return errClientLeft // Upgrade has sent the answer
	}
	s := &session{Stream: newTerminal(c, ws), call: c, sizes: make(chan terminal.Size, 1)}
	var input *io.PipeWriter
	s.stdin, input = io.Pipe()
	go s.ServeInput(input, s.sizes)
	err = c.finishStream(run(s))
	_ = s.stdin.Close() // discard later input
	if errors.Is(err, errClientLeft) {
		s.Close()
	} else {
		s.Finish(lastMessage(err))
	}
	return err
}

// newTerminal returns the terminal stream over a WebSocket, with the limits and the counters of the call.
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

// copyConnection copies between the client and conn, in both directions, until all of conn was read. The caller must
// close conn when the stream ends, because only that ends a copy that waits for conn.
func (s *session) copyConnection(conn io.ReadWriteCloser, ends streamEnds) error {
	inputCopied := make(chan struct{})
	go func() {
		defer close(inputCopied)
		if err := terminal.Copy(conn, s.stdin); err != nil {
			s.call.end(ends.onError(err))
		} else if half, ok := conn.(interface{ CloseWrite() error }); ok {
			if err := half.CloseWrite(); err != nil {
				s.call.end(ends.onError(err))
			}
		}
	}()
	if console, ok := conn.(driver.InputConsole); ok {
		go s.resize(console)
	}
	output := s.Writer(terminal.Output)
	if s.call.r.URL.Query().Get("stdout") == "false" {
		output = unsent{s.call}
	}
	err := terminal.Copy(output, conn)
	if err == nil {
		err = ends.atEOF
	} else {
		err = ends.onError(err)
	}
	err = s.call.finishStream(err) // first: closing stdin makes the other copy fail
	_ = s.stdin.Close()
	<-inputCopied
	return err
}

// unsent is output that the client does not want. It counts as traffic.
type unsent struct{ call *call }

// Write implements io.Writer.
func (u unsent) Write(p []byte) (int, error) {
	u.call.recordTraffic()
	return len(p), nil
}

// resize passes on sizes of the client's terminal until the stream ends.
func (s *session) resize(console driver.InputConsole) {
	for {
		select {
		case size := <-s.sizes:
			console.Resize(size)
		case <-s.call.ctx.Done():
			return
		}
	}
}

// lastMessage returns the Status of a stream's end, as JSON. Clients in Go show only the message of a Status, so the
// message repeats the reason.
func lastMessage(end error) []byte {
	status := statusOf(end)
	if status.Reason != "" && status.Reason != remotecommand.NonZeroExitCodeReason {
		status.Message = string(status.Reason) + ": " + status.Message
	}
	text, _ := json.Marshal(status) // cannot fail for a Status
	return text
}

// explainEnd returns the cause of a stream's end, given the error of its connection to the client.
func explainEnd(err error) error {
	if violation, ok := errors.AsType[terminal.ViolationError](err); ok {
		return badRequest("%s", string(violation))
	}
	if errors.Is(err, terminal.ErrSilent) {
		return errSilent
	}
	return writeError(err)
}
