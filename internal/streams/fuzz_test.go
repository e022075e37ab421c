// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// FuzzMessages checks that a command reads what a client sends for its input and nothing else,
// whatever else the client sends, that the end of the stream says what was wrong, and that the
// stream is over then.
func FuzzMessages(f *testing.F) {
	for _, m := range [][]byte{
		{0, 'a'}, {4, '{', '}'}, {255, 0}, {255}, {}, {1, 'x'}, append([]byte{4}, `{"Width":80,"Height":24}`...), append([]byte{4}, `{"Width":-1}`...), {0},
	} {
		f.Add(m, []byte{0, 'b'}, m, false)
		f.Add(m, []byte{0, 'b'}, m, true)
	}
	s := newFixture(f, nil)
	f.Fuzz(func(t *testing.T, first, second, third []byte, isText bool) {
		kind := websocket.BinaryMessage
		if isText {
			kind = websocket.TextMessage
		}
		messages := [][]byte{first, second, third}
		got := s.exchange(t, func(ws *websocket.Conn) {
			for i, m := range messages {
				if i > 0 {
					kind = websocket.BinaryMessage
				}
				_ = ws.WriteMessage(kind, m)
			}
			_ = ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Hour))
		})
		want, wrong, isOver := expectedInput(messages, isText)
		assert.True(t, bytes.Equal(got.input, want), "of %q the command reads %q, want %q", messages, got.input, want)
		assert.True(t, isOver || wrong == (got.end.Reason == metav1.StatusReasonBadRequest),
			"%q ends the stream with %+v, want a bad request: %t", messages, got.end, wrong)
	})
}

// FuzzFrames does the same for bytes that are not valid messages and follow the handshake.
func FuzzFrames(f *testing.F) {
	for _, frame := range [][]byte{
		nil,
		{0x82, 0x80, 0, 0, 0, 0},
		{0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0},
		{0x82, 0x02, 0, 'a'},
		{0x89, 0x80, 0, 0, 0, 0},
		{0x88, 0x82, 0, 0, 0, 0, 3, 0xe8},
		{0x02, 0x82, 0, 0, 0, 0, 0, 'a', 0x80, 0x81, 0, 0, 0, 0, 'b'},
		{0xc2, 0x80, 0, 0, 0, 0},
	} {
		f.Add(frame)
	}
	s := newFixture(f, nil)
	f.Fuzz(func(t *testing.T, sent []byte) {
		got := s.exchange(t, func(ws *websocket.Conn) { _, _ = ws.NetConn().Write(sent) })
		assert.True(t, len(got.input) <= len(sent), "of %d bytes the command reads %d", len(sent), len(got.input))
	})
}

// exchanged is the result of an exchange.
type exchanged struct {
	input []byte
	end   metav1.Status
}

// exchange runs a command that reads its input, and returns what it read and how the stream
// ended, once it is over. The client leaves after what it sends.
func (f *fixture) exchange(t *testing.T, send func(*websocket.Conn)) (got exchanged) {
	t.Helper()
	read := make(chan []byte, 1)
	f.driver.exec = func(_ context.Context, r terminal.Command) (int, error) {
		input, err := io.ReadAll(r.Stdin)
		read <- input
		return 0, err
	}
	ws, response, err := f.tryDial("alice", f.url(streams.Exec, "command=cat&stdin=true&stdout=true&tty=true"), streams.Protocol)
	assert.NoError(t, err)
	_ = response.Body.Close()
	defer func() { _ = ws.Close() }()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		got.end = readStatus(ws)
	}()
	send(ws)
	if half, ok := ws.NetConn().(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	<-ended
	got.input = <-read
	f.waitForOpen(t, 0)
	return got
}

// readStatus reads what the server sends, and returns the last status.
func readStatus(ws *websocket.Conn) (end metav1.Status) {
	for {
		_, message, err := ws.ReadMessage()
		if err != nil {
			return end
		}
		if len(message) > 0 && message[0] == remotecommand.StreamErr {
			_ = json.Unmarshal(message[1:], &end)
		}
	}
}

// expectedInput returns what messages mean for the input, up to the first that is wrong. The
// command is over when its input ends, so that what follows may be read, or may not.
func expectedInput(messages [][]byte, isFirstText bool) (input []byte, wrong, isOver bool) {
	for i, m := range messages {
		switch {
		case i == 0 && isFirstText:
			return input, true, false
		case len(m) == 0:
		case m[0] == remotecommand.StreamStdIn:
			input = append(input, m[1:]...)
		case m[0] == remotecommand.StreamResize:
			var size terminal.Size
			if json.NewDecoder(bytes.NewReader(m[1:])).Decode(&size) != nil {
				return input, true, false
			}
		case m[0] == remotecommand.StreamClose && len(m) == 1:
			return input, true, false
		case m[0] == remotecommand.StreamClose && m[1] == remotecommand.StreamStdIn:
			return input, false, true
		case m[0] == remotecommand.StreamClose:
		default:
			return input, true, false
		}
	}
	return input, false, false
}

// FuzzRequest checks that a request is for a stream of a VirtualMachine that can exist, or is
// answered with the reason why it is wrong.
func FuzzRequest(f *testing.F) {
	good := streams.Path("demo", "vm", streams.Exec)
	for _, c := range [][2]string{
		{good, "command=a&stdout=true"},
		{good + "/../log", "command="},
		{streams.Path("a/b", "%2e%2e", streams.Log), "tailLines=-1"},
		{streams.Path("demo", "vm", streams.PortForward), "port=65536"},
		{"/", "%"},
		{streams.PathPrefix + "/namespaces//virtualmachines//exec", "stdin=2"},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, path, query string) {
		c := &call{r: httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)}
		c.r.URL = &url.URL{Path: path, RawQuery: query}
		_, err := c.parsePath()
		if err != nil {
			checkRefusal(t, err)
			return
		}
		if path != streams.Path(c.namespace, c.name, c.stream) || len(validation.NameIsDNSSubdomain(c.name, false))+len(validation.ValidateNamespaceName(c.namespace, false)) > 0 {
			t.Errorf("%q is a stream of %s/%s", path, c.namespace, c.name)
		}
		if o, err := readExecOptions(c.r.URL.Query()); err != nil {
			checkRefusal(t, err)
		} else if len(o.command) == 0 || o.command[0] == "" {
			t.Errorf("%q runs %q", query, o.command)
		}
	})
}

func checkRefusal(t *testing.T, err error) {
	t.Helper()
	code := statusErrorOf(err).ErrStatus.Code
	assert.True(t, code >= 400 && code < 500 && !errors.Is(err, errNoUser), "it is answered with %d: %v", code, err)
}
