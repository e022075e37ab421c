// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/gorilla/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

const (
	stdoutChannel = remotecommand.StreamStdOut
	stderrChannel = remotecommand.StreamStdErr
	// maxMessage is the largest message that a client may send; those of Kubernetes send at
	// most 32 KiB.
	maxMessage = 256 << 10
	// chunk is how much is copied at a time.
	chunk = 16 << 10
)

// chunks are buffers for the input of clients, which idle sessions do not hold.
var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// upgrader opens WebSockets. Browsers, which may have a client certificate, may do so only
// from a page of the same host.
var upgrader = websocket.Upgrader{
	Subprotocols: []string{streams.Protocol}, ReadBufferSize: 4 << 10, WriteBufferSize: chunk + 16, WriteBufferPool: &sync.Pool{},
}

// session is the WebSocket of a stream.
type session struct {
	*call
	ws *websocket.Conn
	// stdin is the input of the client, io.EOF once it has closed that channel.
	stdin   *io.PipeReader
	toStdin *io.PipeWriter
	sizes   chan driver.TerminalSize // the latest
	writing sync.Mutex
	// received is closed once nothing more is received.
	received chan struct{}
}

// checkHandshake refuses a request that cannot become a WebSocket, before an engine is asked
// for something.
func (c *call) checkHandshake() error {
	if !websocket.IsWebSocketUpgrade(c.r) {
		return badRequest("%s needs a WebSocket", c.stream)
	}
	if asked := websocket.Subprotocols(c.r); !slices.Contains(asked, streams.Protocol) {
		return badRequest("the subprotocols of the WebSocket are %.200q: one must be %s", asked, streams.Protocol)
	}
	if !sameOrigin(c.r) {
		return newStatusError(http.StatusForbidden, metav1.StatusReasonForbidden, "the header Origin is %.200q: it must have the host %.200q, or be missing", c.r.Header.Get("Origin"), c.r.Host)
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
	s := &session{call: c, ws: ws, sizes: make(chan driver.TerminalSize, 1), received: make(chan struct{})}
	s.stdin, s.toStdin = io.Pipe()
	go s.readClient()
	go s.keepAlive()
	err = c.finishStream(run(s))
	s.closeWith(err)
	return err
}

// joinConnection copies between the client and conn until conn was read to its end. It needs conn to be closed when
// the stream ends.
func (s *session) joinConnection(conn io.ReadWriteCloser, ends ending) error {
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		if err := copyTo(conn, s.stdin); err != nil {
			s.end(ends.onError(err))
		} else if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	err := copyTo(channel{s, stdoutChannel}, conn)
	if err == nil {
		err = ends.atEOF
	} else {
		err = ends.onError(err)
	}
	err = s.finishStream(err) // before stdin is closed, which is an error for the other copy
	_ = s.stdin.Close()
	<-copied
	return err
}

// copyTo copies until io.EOF, with a new buffer.
func copyTo(writer io.Writer, reader io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{writer}, struct{ io.Reader }{reader}, make([]byte, chunk))
	return err
}

// channel is one of the channels to the client.
type channel struct {
	*session
	number byte
}

// Write implements io.Writer. A client that does not read ends the stream.
func (c channel) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	written := 0
	for part := range slices.Chunk(p, chunk) { // each has a separate deadline
		if err := c.sendMessage(c.number, part); err != nil {
			err = writeError(err)
			c.end(err)
			return written, err
		}
		written += len(part)
		c.out.Add(int64(len(part)))
		c.recordTraffic()
	}
	return written, nil
}

// sendMessage sends a message.
func (s *session) sendMessage(number byte, p []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(s.Clock.Now().Add(s.times.write)); err != nil {
		return err
	}
	w, err := s.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	_, err = w.Write([]byte{number})
	if err == nil {
		_, err = w.Write(p)
	}
	return errors.Join(err, w.Close())
}

// keepAlive sends pings, whose answers are proof of the client. It sends pongs too, since
// pings of the client are not read while a server does not read the input of the client.
func (s *session) keepAlive() {
	ticker := s.Clock.NewTicker(s.times.ping)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C():
		}
		for _, kind := range []int{websocket.PingMessage, websocket.PongMessage} {
			// A deadline that passes spoils the connection, so it is as long as for any write.
			if err := s.ws.WriteControl(kind, nil, s.Clock.Now().Add(s.times.write)); err != nil {
				s.end(writeError(err))
				return
			}
		}
	}
}

// closeWith sends how the stream has ended, and gives the client time to read that: a connection
// that is closed before all of it was read loses what was sent.
func (s *session) closeWith(end error) {
	_ = s.stdin.Close() // what is received from now on is discarded
	if !errors.Is(end, errClientLeft) && s.sendEnd(end) == nil {
		timer := s.Clock.NewTimer(s.times.linger)
		defer timer.Stop()
		select {
		case <-s.received:
		case <-timer.C():
		}
	}
	_ = s.ws.Close()
	<-s.received
}

// sendEnd sends the Status. Clients in Go show only its message, so that has the reason too.
func (s *session) sendEnd(end error) error {
	status := statusOf(end)
	if status.Reason != "" && status.Reason != remotecommand.NonZeroExitCodeReason {
		status.Message = string(status.Reason) + ": " + status.Message
	}
	text, err := json.Marshal(status)
	if err != nil {
		return err
	}
	if err := s.sendMessage(remotecommand.StreamErr, text); err != nil {
		return err
	}
	return s.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), s.Clock.Now().Add(s.times.linger))
}

// readClient reads the messages of the client until it leaves, which ends the stream.
func (s *session) readClient() {
	defer close(s.received)
	s.ws.SetReadLimit(maxMessage)
	s.ws.SetPongHandler(func(string) error { return s.allowSilence() })
	answer := s.ws.PingHandler()
	s.ws.SetPingHandler(func(data string) error { return errors.Join(s.allowSilence(), answer(data)) })
	err := receiveError(s.receiveMessages())
	s.end(err)                        // before stdin is closed, which ends the stream too
	_ = s.toStdin.CloseWithError(err) // not io.EOF, which would be the end of the input
	if !errors.Is(err, errClientLeft) {
		_, _ = io.Copy(io.Discard, s.ws.NetConn()) // until closeWith has sent why
	}
}

// receiveError says why nothing more is received.
func receiveError(err error) error {
	var timeout net.Error
	switch {
	case errors.Is(err, websocket.ErrReadLimit):
		return badRequest("a message was larger than %d bytes", maxMessage)
	case errors.As(err, &timeout) && timeout.Timeout():
		return errSilent
	}
	if known, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return known
	}
	return errClientLeft
}

func (s *session) allowSilence() error {
	return s.ws.SetReadDeadline(s.Clock.Now().Add(s.times.silence))
}

func (s *session) receiveMessages() error {
	for {
		if err := s.allowSilence(); err != nil {
			return err
		}
		kind, message, err := s.ws.NextReader()
		if err != nil {
			return err
		}
		if kind != websocket.BinaryMessage {
			return badRequest("a message was not binary")
		}
		if err := s.receiveMessage(message); err != nil {
			return err
		}
	}
}

// receiveMessage takes one message, whose first byte is its channel.
func (s *session) receiveMessage(message io.Reader) error {
	var number [1]byte
	if _, err := io.ReadFull(message, number[:]); err != nil {
		return ignoreEOF(err) // an empty message means nothing
	}
	switch number[0] {
	case remotecommand.StreamStdIn:
		return s.receiveInput(message)
	case remotecommand.StreamResize:
		return s.receiveSize(message)
	case remotecommand.StreamClose:
		return s.receiveClose(message)
	}
	return badRequest("a message was for channel %d: it must be %d, %d or %d", number[0],
		remotecommand.StreamStdIn, remotecommand.StreamResize, remotecommand.StreamClose)
}

func (s *session) receiveInput(message io.Reader) error {
	buffer, _ := chunks.Get().(*[chunk]byte)
	defer chunks.Put(buffer)
	for {
		if err := s.allowSilence(); err != nil {
			return err
		}
		n, err := message.Read(buffer[:])
		if n > 0 { // a pipe waits for a reader even to pass on nothing
			s.in.Add(int64(n))
			s.recordTraffic()
			_, _ = s.toStdin.Write(buffer[:n]) // it fails once nothing reads the input any more
		}
		if err != nil {
			return ignoreEOF(err)
		}
	}
}

func (s *session) receiveSize(message io.Reader) error {
	var size driver.TerminalSize
	if err := json.NewDecoder(message).Decode(&size); err != nil {
		if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, websocket.ErrReadLimit) {
			return err
		}
		return badRequest("a size of the terminal was not understood: it must be {\"Width\": 80, \"Height\": 24}, each from 0 to 65535")
	}
	select {
	case <-s.sizes:
	default:
	}
	s.sizes <- size // there is room, since only this function sends
	return nil
}

// receiveClose takes the end of a channel. Only that of the input means something.
func (s *session) receiveClose(message io.Reader) error {
	var number [1]byte
	if _, err := io.ReadFull(message, number[:]); err != nil {
		return badRequest("a channel was closed without its number")
	}
	if number[0] == remotecommand.StreamStdIn {
		_ = s.toStdin.Close()
	}
	return nil
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
