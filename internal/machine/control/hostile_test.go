// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// answerRaw returns a client of a machine that reads a request, and then does what a test says.
func answerRaw(t *testing.T, answer func(net.Conn)) *Client {
	t.Helper()
	path := filepath.Join(framework.ShortTempDir(t), "socket")
	listener := framework.Listen(t, "unix", path)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				_, _ = conn.Read(make([]byte, 4<<10))
				answer(conn)
			}()
		}
	}()
	return NewLocalClient("token", func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) })
}

// TestLies checks that no answer of a machine is read without bound, and that none is taken for a status that cannot
// be. Each that goes on for ever is one that only a bound can end.
func TestLies(t *testing.T) {
	t.Parallel()
	header := "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	body := func(text string) string {
		return fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", header, len(text), text)
	}
	forEver := func(begin, part string) func(net.Conn) {
		return func(conn net.Conn) {
			_, err := io.WriteString(conn, begin)
			for err == nil {
				_, err = io.WriteString(conn, part)
			}
		}
	}
	for name, answer := range map[string]func(net.Conn){
		"a long body":       forEver(header+"Content-Length: 99999999999999\r\n\r\n", strings.Repeat(" ", 4<<10)),
		"endless chunks":    forEver(header+"Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n"),
		"a long status":     forEver("HTTP/1.1 200 ", strings.Repeat("O", 4<<10)),
		"a long header":     forEver("HTTP/1.1 200 OK\r\nX: ", strings.Repeat("a", 4<<10)),
		"endless headers":   forEver("HTTP/1.1 200 OK\r\n", strings.Repeat("X: a\r\n", 1<<10)),
		"switches for it":   forEver("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n", strings.Repeat("X: a\r\n", 1<<10)),
		"informs for ever":  forEver("", "HTTP/1.1 103 Early Hints\r\nX: a\r\n\r\n"),
		"a redirection":     forEver("HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", ""),
		"no HTTP":           forEver("", "\x00\xff"),
		"no JSON":           forEver(body("{"), ""),
		"a list":            forEver(body("[]"), ""),
		"deep JSON":         forEver(body(strings.Repeat("[", 60<<10)), ""),
		"no state":          forEver(body("{}"), ""),
		"another state":     forEver(body(`{"state":"gone"}`), ""),
		"another wait":      forEver(body(`{"state":"running","waits":"food"}`), ""),
		"an escape":         forEver(body(`{"state":"running","runState":"\u001b[2Jrunning"}`), ""),
		"a line":            forEver(body(`{"state":"running","runState":"running\n"}`), ""),
		"a fault":           forEver(body(`{"state":"running","fault":{"reason":"\u202eno space"}}`), ""),
		"a long text":       forEver(body(`{"state":"running","runState":"`+strings.Repeat("a", 101)+`"}`), ""),
		"less than none":    forEver(body(`{"state":"running","guestMemoryBytes":-1}`), ""),
		"too much":          forEver(body(`{"state":"running","guestMemoryBytes":99999999999999999999}`), ""),
		"an odd port":       forEver(body(`{"state":"running","servedPorts":[{"protocol":"tcp","hostIP":"\u001b[2J","hostPort":1,"port":1}]}`), ""),
		"a port of no kind": forEver(body(`{"state":"running","servedPorts":[{"protocol":"x","hostPort":1,"port":1}]}`), ""),
		"many ports":        forEver(body(`{"state":"running","servedPorts":[`+strings.Repeat(`{"protocol":"tcp"},`, maxPorts)+`{"protocol":"tcp"}]}`), ""),
		"another CPU":       forEver(body(`{"state":"running","accelerator":"xen"}`), ""),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := answerRaw(t, answer)
			for what, call := range map[string]func(context.Context) error{
				"status":     func(ctx context.Context) error { return assert.ErrorOf(c.Status(ctx)) },
				"console":    func(ctx context.Context) error { return assert.ErrorOf(c.Console(ctx, false)) },
				"interfaces": func(ctx context.Context) error { return assert.ErrorOf(c.Interfaces(ctx)) },
			} {
				err := call(t.Context())
				if name == "a list" && what == "interfaces" && err == nil {
					continue
				}
				assert.True(t, errors.Is(err, failure.ErrProtocol) || errors.Is(err, failure.ErrUnreachable), "%s: got %v", what, err)
				assert.True(t, err == nil || !strings.ContainsAny(err.Error(), "\x1b\n\u202e"), "%s: the error repeats what it got: %q", what, err)
			}
		})
	}
}

// TestSilentMachine checks that a call which no caller limits ends though the machine never answers.
func TestSilentMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewLocalClient("token", func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(io.Discard, far) }()
			return near, nil
		})
		assert.ErrorIs(t, "interfaces", assert.ErrorOf(c.Interfaces(t.Context())), context.DeadlineExceeded)
		assert.ErrorIs(t, "a console", assert.ErrorOf(c.Console(t.Context(), false)), context.DeadlineExceeded)
	})
}

// TestLyingStream checks that wrong messages of a console or of a command end the stream.
func TestLyingStream(t *testing.T) {
	t.Parallel()
	for name, messages := range map[string][][]byte{
		"nothing":           {{}},
		"another channel":   {{99, 'a'}},
		"input":             {{terminal.Input, 'a'}},
		"a long message":    {append([]byte{terminal.Output}, make([]byte, 2*maxOutput)...)},
		"an end of nothing": {{terminal.Control.End}},
		"another failure":   {append([]byte{terminal.Control.End}, `{"failure":"\u001b[2J"}`...)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(framework.ShortTempDir(t), "socket")
			listener := framework.Listen(t, "unix", path)
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { //nolint:gosec // a test's
				ws, err := upgrader.Upgrade(w, r, nil)
				if err != nil {
					return
				}
				for _, m := range messages {
					_ = ws.WriteMessage(2, m)
				}
				_, _, _ = ws.ReadMessage() // until the client leaves
				for err == nil {
					_, _, err = ws.ReadMessage()
				}
			})}
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })
			c := NewLocalClient("token", func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) })
			console, err := c.Console(t.Context(), false)
			assert.NoError(t, err)
			_, err = io.ReadAll(console)
			assert.True(t, errors.Is(err, failure.ErrProtocol) && !strings.Contains(err.Error(), "\x1b"), "a console: got %v", err)
			_, err = c.Exec(t.Context(), terminal.Command{Args: []string{"true"}, Stdout: io.Discard, Stderr: io.Discard})
			assert.True(t, err != nil && !strings.Contains(err.Error(), "\x1b"), "a command: got %v", err)
		})
	}
}
