// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

// newClient returns a WebSocket to a stream that a test serves.
func newClient(t *testing.T, p terminal.Protocol, serve func(*terminal.Stream)) *websocket.Conn {
	t.Helper()
	var upgrader websocket.Upgrader
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		ctx, end := context.WithCancelCause(r.Context())
		serve(terminal.New(ctx, end, ws, terminal.Settings{
			Protocol: p, Clock: clock.RealClock{}, MaxMessage: 64 << 10, Explain: func(err error) error { return err },
			PingEvery: time.Hour, SilentWithin: time.Hour, SendWithin: time.Hour, LingerFor: time.Hour,
		}))
	}))
	t.Cleanup(s.Close)
	ws, response, err := websocket.DefaultDialer.DialContext(t.Context(), "ws"+strings.TrimPrefix(s.URL, "http"), nil)
	assert.NoError(t, err)
	_ = response.Body.Close()
	t.Cleanup(func() { _ = ws.Close() })
	return ws
}

// TestProtocols checks the bytes of each protocol, which other versions of Drover and of kubectl send and expect.
func TestProtocols(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		protocol       terminal.Protocol
		sends, expects []string
	}{
		"Kubernetes": {terminal.Kubernetes, []string{"\x00a", "", "\x04{\"Width\":80,\"Height\":24}", "\x00bc", "\xff\x01", "\xff\x00"}, []string{"\x01abc", "\x0280x24", "\x03end"}},
		"Control":    {terminal.Control, []string{"\x00a", "\x05{\"width\":80,\"height\":24}", "\x00bc", "\x00"}, []string{"\x01abc", "\x0280x24", "\x04end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ws := newClient(t, test.protocol, func(s *terminal.Stream) {
				stdin, input := io.Pipe()
				sizes := make(chan terminal.Size, 1)
				go s.ServeInput(input, sizes)
				text, err := io.ReadAll(stdin)
				assert.NoError(t, errors.Join(err, s.Send(terminal.Output, text)))
				if size := <-sizes; size == (terminal.Size{Width: 80, Height: 24}) {
					_, err = io.WriteString(s.Writer(terminal.Errors), "80x24")
				}
				assert.NoError(t, err)
				s.Finish([]byte("end"))
			})
			for _, m := range test.sends {
				assert.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte(m)))
			}
			var got []string
			for range test.expects {
				_, m, err := ws.ReadMessage()
				assert.NoError(t, err)
				got = append(got, string(m))
			}
			assert.True(t, slices.Equal(got, test.expects), "got %q, want %q", got, test.expects)
			if name == "Kubernetes" {
				_, _, err := ws.ReadMessage()
				assert.True(t, websocket.IsCloseError(err, websocket.CloseNormalClosure), "the stream ends with %v, want a normal closure", err)
			}
		})
	}
}

// TestViolations checks that a stream ends at a message that its protocol does not have, that the text says why, and
// that the input ends with this error: it is not complete.
func TestViolations(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		protocol   terminal.Protocol
		sent, want string
	}{
		"Kubernetes, start":    {terminal.Kubernetes, "\x03{}", "channel 3: it must be 0, 4 or 255"},
		"Kubernetes, output":   {terminal.Kubernetes, "\x01a", "channel 1: it must be 0, 4 or 255"},
		"Kubernetes, no close": {terminal.Kubernetes, "\xff", "closed without its number"},
		"Control, close":       {terminal.Control, "\xff\x00", "channel 255: it must be 0 or 5"},
		"Control, end":         {terminal.Control, "\x04{}", "channel 4: it must be 0 or 5"},
		"Control, nothing":     {terminal.Control, "", "was empty"},
		"Control, size":        {terminal.Control, "\x05{\"width\":-1}", "a size of the terminal was not understood"},
		"large":                {terminal.Control, "\x00" + strings.Repeat("a", 64<<10), "a message was larger than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan error, 1)
			ws := newClient(t, test.protocol, func(s *terminal.Stream) {
				stdin, input := io.Pipe()
				go s.ServeInput(input, make(chan terminal.Size, 1))
				_, err := io.ReadAll(stdin)
				ended <- err
				s.Close()
			})
			assert.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte(test.sent)))
			err := <-ended
			assert.ErrorSays(t, name, err, test.want)
			_, ok := errors.AsType[terminal.ViolationError](err)
			assert.True(t, ok, "%v is not a violation", err)
		})
	}
}
