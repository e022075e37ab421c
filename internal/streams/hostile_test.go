// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestWrongProtocol checks what WebSockets of other protocols are answered, and that the
// driver is not called for them.
func TestWrongProtocol(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.console = func(context.Context) (io.ReadWriteCloser, error) {
		t.Error("the driver was called")
		return nil, errors.New("unexpected")
	}
	for _, protocols := range [][]string{nil, {"v4.channel.k8s.io"}, {"SPDY/3.1+portforward.k8s.io"}} {
		_, response, err := f.tryDial("alice", f.url(streams.Console, ""), protocols...)
		assert.Require(t, err != nil && response.StatusCode == http.StatusBadRequest, "%q: error %v", protocols, err)
		text, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		assert.Contains(t, fmt.Sprintf("%q: the answer", protocols), string(text), "one must be v5.channel.k8s.io")
	}
}

// TestBadMessages checks that a message which breaks the protocol ends the stream, with an
// answer that says why.
func TestBadMessages(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		kind    int
		message []byte
		says    string
	}{
		"text":            {websocket.TextMessage, []byte("hello"), "BadRequest: a message was not binary"},
		"unknown channel": {websocket.BinaryMessage, []byte{7, 1}, "BadRequest: a message was for channel 7: it must be 0, 4 or 255"},
		"server's":        {websocket.BinaryMessage, []byte{1, 1}, "BadRequest: a message was for channel 1"},
		"no size":         {websocket.BinaryMessage, []byte("\x04{"), "BadRequest: a size of the terminal was not understood"},
		"large size":      {websocket.BinaryMessage, []byte("\x04{\"Width\":65536,\"Height\":1}"), "BadRequest: a size of the terminal was not understood"},
		"close nothing":   {websocket.BinaryMessage, []byte{255}, "BadRequest: a channel was closed without its number"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			ws := f.dial(t, "alice", f.url(streams.Console, ""))
			assert.NoError(t, ws.WriteMessage(test.kind, test.message))
			assert.Contains(t, "the end", readEnd(t, ws), test.says)
			_ = ws.Close() // the server waits for that
			f.wantEnd(t, `"end"="BadRequest"`)
		})
	}
}

// TestHarmlessMessages checks that a client may send what means nothing.
func TestHarmlessMessages(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	ws := f.dial(t, "alice", f.url(streams.Console, ""))
	for _, message := range [][]byte{{}, {0}, {255, 1}, {255, 200}, []byte("\x04{\"Width\":80,\"Height\":24}"), []byte("\x00hello")} {
		assert.NoError(t, ws.WriteMessage(websocket.BinaryMessage, message))
	}
	_, message, err := ws.ReadMessage()
	assert.True(t, err == nil && string(message) == "\x01hello", "the console shows %q, %v", message, err)
}

// readEnd returns the Status of channel 3.
func readEnd(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	for {
		_, message, err := ws.ReadMessage()
		assert.Require(t, err == nil, "the stream ends without a Status: %v", err)
		if message[0] == 3 {
			return string(message[1:])
		}
	}
}

// TestOversizedMessage checks that a message larger than the limit ends the stream, whether
// it comes in one frame or in many, before it was received.
func TestOversizedMessage(t *testing.T) {
	t.Parallel()
	for name, frames := range map[string]int{"one frame": 1, "many frames": 64} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, nil)
			received := make(chan int, 1)
			f.driver.exec = func(_ context.Context, r terminal.Command) (int, error) {
				all, err := io.ReadAll(r.Stdin)
				received <- len(all)
				return 0, err
			}
			ws := f.dial(t, "alice", f.url(streams.Exec, "command=cat&stdin=true"))
			w, err := ws.NextWriter(websocket.BinaryMessage)
			assert.NoError(t, err)
			_, _ = w.Write([]byte{0})
			for range frames { // an error is fine: the server does not wait for the rest
				_, _ = w.Write(make([]byte, 2*maxMessage/frames))
			}
			_ = w.Close()
			f.wantEnd(t, `"end"="BadRequest"`)
			n := <-received
			assert.True(t, n <= maxMessage, "%d bytes were received", n)
		})
	}
}

// TestHalfOpenClient checks that a client which is gone without a word is noticed, and that
// one which only answers pings is not taken for one.
func TestHalfOpenClient(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]bool{"silent": false, "idle": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			silence := time.Second
			if answers {
				silence = time.Hour
			}
			f := newFixture(t, func(h *Handler) { h.times.ping, h.times.silence = time.Millisecond, silence })
			ws := f.dial(t, "alice", f.url(streams.Console, ""))
			if !answers { // pings are answered only while something is read
				f.wantEnd(t, `"end"="Timeout"`)
				return
			}
			go func() { _, _, _ = ws.ReadMessage() }()
			before := f.deadlines.Load()
			assert.Eventually(t, "each answer gives the client more time", func(testing.TB) error {
				n := f.deadlines.Load() - before
				return assert.ErrorUnless(n >= 10, "it got that %d times", n)
			})
		})
	}
}

// TestFailingControlMessages checks that a stream ends, and nothing of it is left, whose
// connection takes no ping, and one whose end cannot be sent.
func TestFailingControlMessages(t *testing.T) {
	t.Parallel()
	for name, ping := range map[string]time.Duration{"ping": 10 * time.Millisecond, "end": time.Hour} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, func(h *Handler) { h.times.ping = ping })
			ws := f.dial(t, "alice", f.url(streams.Console, "stdin=true"))
			assert.NoError(t, ws.WriteMessage(websocket.BinaryMessage, []byte("\x00hello")))
			_, message, err := ws.ReadMessage()
			assert.Require(t, err == nil && string(message) == "\x01hello", "the console repeats %q, %v", message, err)
			f.broken.Store(true)
			want := `"end"="the client left"`
			if name == "end" {
				want = `"end"="ServiceUnavailable"`
				f.stop()
			}
			f.wantEnd(t, want)
			_, _, err = ws.ReadMessage()
			assert.True(t, err != nil, "something was sent")
			assert.True(t, f.console.closed == 1, "the console was closed %d times", f.console.closed)
		})
	}
}

// TestSlowReader checks that a client which does not read is cut off, from each kind of
// stream, and that the driver's connection is closed.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	open := map[string]func(*testing.T, *fixture, *endless){
		"console": func(t *testing.T, f *fixture, source *endless) {
			f.driver.console = func(context.Context) (io.ReadWriteCloser, error) { return source, nil }
			f.dial(t, "alice", f.url(streams.Console, ""))
		},
		"log": func(t *testing.T, f *fixture, source *endless) {
			f.driver.logs = func(context.Context, driver.LogOptions) (io.ReadCloser, error) { return source, nil }
			f.openLog(t, "follow=true")
		},
		"exec": func(t *testing.T, f *fixture, source *endless) {
			f.driver.exec = func(ctx context.Context, r terminal.Command) (int, error) {
				defer func() { _ = source.Close() }()
				_, err := io.Copy(r.Stdout, source)
				<-ctx.Done()
				return 0, err
			}
			f.dial(t, "alice", f.url(streams.Exec, "command=yes&stdout=true"))
		},
	}
	for name, start := range open {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, func(h *Handler) { h.times.write = 500 * time.Millisecond })
			source := &endless{closed: make(chan struct{})}
			start(t, f, source)
			f.wantEnd(t, `"end"="Timeout"`)
			<-source.closed
		})
	}
}

// endless has always more to read.
type endless struct{ closed chan struct{} }

func (e *endless) Read(p []byte) (int, error) { return len(p), nil }

func (e *endless) Write(p []byte) (int, error) { return len(p), nil }

func (e *endless) Close() error {
	close(e.closed)
	return nil
}

// TestInputThatIsNotRead checks that a client which sends more than the server takes is held
// back, not cut off, and still receives the final Status.
func TestInputThatIsNotRead(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) { h.times.ping, h.times.silence = 20*time.Millisecond, time.Second })
	end := make(chan struct{})
	f.driver.exec = func(context.Context, terminal.Command) (int, error) {
		<-end
		return 3, nil
	}
	ws := f.dial(t, "alice", f.url(streams.Exec, "command=sleep&stdin=true&stdout=true"))
	pongs := make(chan struct{}, 1)
	ws.SetPongHandler(func(string) error {
		select {
		case pongs <- struct{}{}:
		default:
		}
		return nil
	})
	go func() {
		for ws.WriteMessage(websocket.BinaryMessage, make([]byte, 32<<10)) == nil { // channel 0
			continue
		}
	}()
	go func() {
		for began := time.Now(); time.Since(began) < 3*time.Second; { // longer than the silence that is allowed
			<-pongs // else the client would take the server for gone
		}
		close(end)
	}()
	assert.Contains(t, "the end", readEnd(t, ws), "NonZeroExitCode")
}

// TestLimits checks how many streams may be open, and that each gives its place back.
func TestLimits(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil) // 4 for a VM, 8 in all, 6 of them for a namespace
	f.create(t, framework.NewVM("other").Namespace("demo").UID("uid-2").Bound("stub/engine-1"))
	other := f.url(streams.Console, "", "other")
	var open []*websocket.Conn
	for range 4 {
		open = append(open, f.dial(t, "alice", f.url(streams.Console, "")))
	}
	f.expectTooMany(t, f.url(streams.Console, ""), "this VirtualMachine has 4 open streams, the most that --streams-per-vm of")
	f.dial(t, "bob", other)
	f.dial(t, "bob", other)
	f.expectTooMany(t, other, "namespace demo has 6 open streams, the most that --streams-max of")
	_ = open[0].Close()
	f.waitForEnds(t, 1)
	f.waitForOpen(t, 5)
	f.dial(t, "alice", f.url(streams.Console, ""))
}

func (f *fixture) expectTooMany(t *testing.T, url, message string) {
	t.Helper()
	_, response, err := f.tryDial("alice", url, streams.Protocol)
	assert.Require(t, err != nil, "it is opened")
	defer func() { _ = response.Body.Close() }()
	assert.Require(t, response.StatusCode == http.StatusTooManyRequests && response.Header.Get("Retry-After") == "", "error %v", err)
	text, _ := io.ReadAll(response.Body)
	assert.True(t, strings.Contains(string(text), message), "the answer is %s", text)
}

// TestSlowEngine checks that an engine which does not answer does not hold a request for
// ever.
func TestSlowEngine(t *testing.T) {
	t.Parallel()
	f := newFixture(t, func(h *Handler) { h.times.open = 100 * time.Millisecond })
	f.driver.console = func(ctx context.Context) (io.ReadWriteCloser, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	_, response, err := f.tryDial("alice", f.url(streams.Console, ""), streams.Protocol)
	assert.Require(t, err != nil, "it is opened")
	defer func() { _ = response.Body.Close() }()
	assert.True(t, response.StatusCode == http.StatusGatewayTimeout, "error %v", err)
}

// TestDroppedSessions opens and drops 1,000 sessions in the ways in which clients go, and
// checks that no goroutine and no descriptor is left.
func TestDroppedSessions(t *testing.T) { // not parallel: it counts
	f := newFixture(t, func(h *Handler) {
		h.PerVM, h.Total = 100, 100
		h.admission = newAdmission(100, 100)
		h.times.linger = 50 * time.Millisecond
	})
	f.driver.logs = func(context.Context, driver.LogOptions) (io.ReadCloser, error) {
		reader, _ := io.Pipe()
		return reader, nil
	}
	f.driver.exec = func(ctx context.Context, r terminal.Command) (int, error) {
		_, _ = io.Copy(io.Discard, r.Stdin)
		<-ctx.Done()
		return 0, ctx.Err()
	}
	f.dropSessions(t, 20) // what the first ones start stays
	goroutines, descriptors := runtime.NumGoroutine(), countDescriptors(t)
	for round := range 49 {
		f.dropSessions(t, 20)
		f.waitForEnds(t, (round+2)*20)
	}
	f.server.CloseClientConnections()
	assert.Eventually(t, "nothing is left", func(t testing.TB) error {
		g, d := runtime.NumGoroutine(), countDescriptors(t)
		return assert.ErrorUnless(g <= goroutines && d <= descriptors, "%d goroutines after %d, %d descriptors after %d", g, goroutines, d, descriptors)
	})
	f.stop() // which waits for all
	assert.True(t, f.admission.total == 0 && len(f.admission.perVM) == 0 && f.console.writer == nil,
		"%d streams are counted, and a writer: %t", f.admission.total, f.console.writer != nil)
}

// dropSessions opens sessions of each kind, and drops them.
func (f *fixture) dropSessions(t *testing.T, count int) {
	t.Helper()
	for i := range count {
		switch i % 5 {
		case 0: // with a message that says so
			ws := f.dial(t, "alice", f.url(streams.Console, ""))
			_ = ws.WriteControl(websocket.CloseMessage, nil, time.Now().Add(time.Hour))
			_ = ws.Close()
		case 1: // after it typed, without a word
			ws := f.dial(t, "alice", f.url(streams.Console, ""))
			_ = ws.WriteMessage(websocket.BinaryMessage, []byte("\x00ls"))
			_ = ws.Close()
		case 2: // by a reset
			ws := f.dial(t, "alice", f.url(streams.Exec, "command=sh&stdin=true"))
			_ = ws.NetConn().(*net.TCPConn).SetLinger(0)
			_ = ws.Close()
		case 3: // in the middle of a message
			ws := f.dial(t, "alice", f.url(streams.Exec, "command=sh&stdin=true"))
			_, _ = ws.NetConn().Write([]byte{0x82, 0xfe, 0xff, 0xff})
			_ = ws.Close()
		case 4:
			f.dropLog(t)
		}
	}
}

// dropLog leaves while the log is followed.
func (f *fixture) dropLog(t *testing.T) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(f.server.URL, "http://"))
	assert.NoError(t, err)
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "GET %s?follow=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice\r\n\r\n", streams.Path("demo", "vm", streams.Log))
	line, err := bufio.NewReader(conn).ReadString('\n')
	assert.Require(t, strings.Contains(line, "200"), "the log is answered by %q, %v", line, err)
}

func countDescriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	assert.NoError(t, err)
	return len(all)
}

// TestLargeWrite checks that a large write is sent in parts, each with a separate deadline.
func TestLargeWrite(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.exec = func(_ context.Context, r terminal.Command) (int, error) {
		_, err := r.Stdout.Write(make([]byte, 3<<20))
		return 0, err
	}
	ws := f.dial(t, "alice", f.url(streams.Exec, "command=x&stdout=true"))
	for total := 0; total < 3<<20; {
		_, message, err := ws.ReadMessage()
		assert.Require(t, err == nil && len(message) <= terminal.ChunkSize+1, "a message has %d bytes, %v", len(message), err)
		total += len(message) - 1
	}
}

// TestOtherOrigin checks that the engine is not asked for a page of another host.
func TestOtherOrigin(t *testing.T) {
	t.Parallel()
	f := newFixture(t, nil)
	f.driver.console = func(context.Context) (io.ReadWriteCloser, error) {
		t.Error("the engine was asked")
		return nil, driver.ErrUnavailable
	}
	dialer := websocket.Dialer{Subprotocols: []string{streams.Protocol}}
	_, response, err := dialer.Dial(strings.Replace(f.url(streams.Console, ""), "http", "ws", 1), //nolint:bodyclose // it is closed
		http.Header{"Authorization": {"Bearer alice"}, "Origin": {"https://evil.example"}})
	assert.True(t, err != nil && response != nil && response.StatusCode == http.StatusForbidden, "it is answered %v, %v", response, err)
}

// TestLimitPerUser checks that one user leaves streams to the others, and gets places back.
func TestLimitPerUser(t *testing.T) {
	t.Parallel()
	a := newAdmission(1, 8)
	a.open(t.Context())
	_, exit, err := a.admitStream("1", "demo", "alice")
	_, _, err2 := a.admitStream("2", "demo", "alice")
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	_, _, err = a.admitStream("3", "demo", "alice")
	assert.True(t, err != nil && strings.Contains(err.Error(), `"alice" has 2 open streams`), "the third: %v", err)
	_, _, err = a.admitStream("3", "demo", "bob")
	exit()
	_, _, err2 = a.admitStream("1", "demo", "alice")
	if err != nil || err2 != nil {
		t.Error(err, err2)
	}
}

// TestLimitPerNamespace checks that the users of one namespace, whose tenants can make any number of them,
// leave streams to other namespaces, and that its places come back.
func TestLimitPerNamespace(t *testing.T) {
	t.Parallel()
	a := newAdmission(1, 8)
	a.open(t.Context())
	var leave []func()
	enter := func(namespace string, n int) error {
		_, exit, err := a.admitStream(types.UID(fmt.Sprint(namespace, n)), namespace, fmt.Sprint(namespace, n))
		leave = append(leave, exit)
		return err
	}
	for n := range 6 {
		assert.NoError(t, enter("demo", n))
	}
	assert.ErrorSays(t, "the seventh", enter("demo", 6), "namespace demo has 6 open streams")
	assert.NoError(t, errors.Join(enter("other", 0), enter("other", 1)))
	assert.ErrorSays(t, "the ninth", enter("other", 2), "this controller has 8 open streams")
	leave[0]()
	assert.NoError(t, enter("demo", 6))
}
