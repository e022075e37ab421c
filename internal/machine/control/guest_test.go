// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// guestStub is a guest whose answers a test sets.
type guestStub struct {
	err     error
	code    int
	console func(ctx context.Context, types bool) io.ReadWriteCloser
	streams bool          // commands get input while they run
	begun   chan struct{} // unless it is nil, has the begin of each command that waits for its caller
	ended   chan error    // has their ends
}

func (g *guestStub) Console(ctx context.Context, types bool) (io.ReadWriteCloser, error) {
	if g.err != nil {
		return nil, g.err
	}
	return g.console(ctx, types), nil
}

func (g *guestStub) TakesInput() bool { return g.streams }

func (g *guestStub) Interfaces(context.Context) ([]report.Interface, error) {
	return []report.Interface{{Name: "eth0", MAC: "52:54:00:12:34:56", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.2.15/24")}}}, g.err
}

func (g *guestStub) NetworkStatistics(context.Context) (report.NetworkStatistics, error) {
	last := report.Refusal{Protocol: TCP, Target: "10.0.0.5:22", Reason: report.RefusedDenied, Count: 14, Last: time.Unix(1, 0).UTC()}
	return report.NetworkStatistics{BytesIn: 3, Refused: 15, LastRefused: []report.Refusal{last}}, g.err
}

// Exec prints its input, and its arguments and settings to the standard error.
func (g *guestStub) Exec(ctx context.Context, c terminal.Command) (int, error) {
	if c.Args[0] == "sleep" {
		if g.begun != nil {
			g.begun <- struct{}{}
		}
		<-ctx.Done()
		g.ended <- context.Cause(ctx)
		return 0, failure.ErrEndUnknown
	}
	if c.TTY {
		size := <-c.Resize
		_, err := fmt.Fprintf(c.Stdout, "%dx%d", size.Width, size.Height)
		return g.code, err
	}
	var err error
	if c.Stdin != nil {
		_, err = io.Copy(c.Stdout, c.Stdin)
	}
	if err == nil {
		_, err = io.WriteString(c.Stderr, strings.Join(slices.Concat(c.Args, c.Env, []string{c.User, c.WorkingDir}), "|"))
	}
	return g.code, cmp.Or(err, g.err)
}

// serveGuest serves a guest, and returns a client of it and one that controls its machine.
func serveGuest(ctx context.Context, t *testing.T, g Guest) (guest, controls *Client) {
	t.Helper()
	seed, guestSeed := bytes.Repeat([]byte{7}, SeedBytes), bytes.Repeat([]byte{8}, SeedBytes)
	machine, err := MachineCredentials(seed, guestSeed, name, "run", time.Now())
	forGuest, guestErr := GuestCredentials(seed, guestSeed, name, "run", time.Now())
	forMachine, clientErr := ClientCredentials(seed, name, "run", time.Now())
	assert.NoError(t, errors.Join(err, guestErr, clientErr))
	s, err := NewServer(ctx, machine, &stub{status: Status{State: StateRunning}}, g)
	assert.NoError(t, err)
	listener := framework.Listen(t, "tcp", "127.0.0.1:0")
	go func() { _ = s.serveTLS(listener) }()
	t.Cleanup(func() { _ = s.http.Close() })
	address := listener.Addr().String()
	return NewClient(address, clientConfig(t, forGuest)), NewClient(address, clientConfig(t, forMachine))
}

// TestTwoAuthorities checks that who controls a machine does not reach its guest, nor the reverse.
func TestTwoAuthorities(t *testing.T) {
	t.Parallel()
	guest, controls := serveGuest(t.Context(), t, &guestStub{})
	for what, c := range map[string]struct {
		err, want error
	}{
		"the status to who controls": {assert.ErrorOf(controls.Status(t.Context())), nil},
		"the status to who may not":  {assert.ErrorOf(guest.Status(t.Context())), failure.ErrProtocol},
		"pausing by who may not":     {guest.Pause(t.Context()), failure.ErrProtocol},
		"interfaces to who may":      {assert.ErrorOf(guest.Interfaces(t.Context())), nil},
		"interfaces to who controls": {assert.ErrorOf(controls.Interfaces(t.Context())), failure.ErrProtocol},
		"figures to who may":         {assert.ErrorOf(guest.NetworkStatistics(t.Context())), nil},
		"figures to who controls":    {assert.ErrorOf(controls.NetworkStatistics(t.Context())), failure.ErrProtocol},
		"a console for who controls": {assert.ErrorOf(controls.Console(t.Context(), false)), failure.ErrProtocol},
		"a command of who controls":  {assert.ErrorOf(controls.Exec(t.Context(), terminal.Command{Args: []string{"id"}})), failure.ErrProtocol},
	} {
		assert.ErrorIs(t, what, c.err, c.want)
	}
	seed := bytes.Repeat([]byte{7}, SeedBytes)
	old, err := GuestCredentials(seed, bytes.Repeat([]byte{8}, SeedBytes), name, "run", time.Now().Add(-guestValidFor-time.Second))
	assert.NoError(t, err)
	guest.dialer.TLSClientConfig = clientConfig(t, old)
	assert.ErrorIs(t, "a console by an old certificate", assert.ErrorOf(guest.Console(t.Context(), false)), failure.ErrIdentity)
}

// TestExecOverStream checks what of a command arrives at both ends.
func TestExecOverStream(t *testing.T) {
	t.Parallel()
	g := &guestStub{}
	c, _ := serveGuest(t.Context(), t, g)
	input := strings.Repeat("0123456789", 100_000)
	for name, want := range map[string]struct {
		stdin io.Reader
		code  int
		err   error
		out   string
	}{
		"without input": {nil, 0, nil, ""},
		"empty input":   {strings.NewReader(""), 3, nil, ""},
		"much input":    {strings.NewReader(input), 255, nil, input},
		"a failure":     {nil, 0, failure.ErrCommandNotFound, ""},
		"output cut":    {nil, 4, failure.ErrOutputCut, ""},
		"words":         {nil, 0, errors.New("hunter2"), ""},
	} {
		g.code, g.err = want.code, want.err
		var out, printed bytes.Buffer
		code, err := c.Exec(t.Context(), terminal.Command{
			Args: []string{"echo", "a b", ""}, Env: []string{"A=b", "C="}, User: "ann", WorkingDir: "/srv", Stdin: want.stdin, Stdout: &out, Stderr: &printed,
		})
		if name == "words" {
			want.err = failure.ErrFailed
		}
		if code != want.code || !errors.Is(err, want.err) || out.String() != want.out || printed.String() != "echo|a b||A=b|C=|ann|/srv" {
			t.Errorf("%s: %d, %v, %d bytes, %q", name, code, err, out.Len(), printed.String())
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: words of the machine arrive: %v", name, err)
		}
	}
}

// clientOf returns a client of a server without authorities.
func clientOf(s *httptest.Server) *Client {
	return NewClient(s.Listener.Addr().String(), s.Client().Transport.(*http.Transport).TLSClientConfig)
}

// TestInputWithoutEnd checks that a command whose input does not end in time is not started.
func TestInputWithoutEnd(t *testing.T) {
	t.Parallel()
	machine := httptest.NewTLSServer(newGuestHandler(&guestStub{}, time.Nanosecond))
	t.Cleanup(machine.Close)
	_, err := clientOf(machine).Exec(t.Context(), terminal.Command{Args: []string{"echo"}, Stdin: blocked{}, Stdout: io.Discard, Stderr: io.Discard})
	assert.ErrorIs(t, "a command whose input stays open", err, failure.ErrInputOpen, "5m0s")
}

// TestTerminal checks that a command has the size of its caller's terminal, and that input of a guest that takes it while
// a command runs is not limited in time.
func TestTerminal(t *testing.T) {
	t.Parallel()
	machine := httptest.NewTLSServer(newGuestHandler(&guestStub{streams: true}, time.Nanosecond))
	t.Cleanup(machine.Close)
	sizes := make(chan terminal.Size, 1)
	sizes <- terminal.Size{Width: 80, Height: 25}
	var out bytes.Buffer
	_, err := clientOf(machine).Exec(t.Context(), terminal.Command{Args: []string{"size"}, Stdin: blocked{}, Stdout: &out, TTY: true, Resize: sizes})
	assert.NoError(t, err)
	if out.String() != "80x25" {
		t.Errorf("it printed %q", out.String())
	}
}

// TestLostCommand checks that a command whose machine is gone may have ended in any way, and that one whose
// input cannot be read says so.
func TestLostCommand(t *testing.T) {
	t.Parallel()
	g := &guestStub{begun: make(chan struct{}), ended: make(chan error, 2)}
	ctx, end := context.WithCancel(t.Context())
	c, _ := serveGuest(ctx, t, g)
	failed := make(chan error)
	exec := func(stdin io.Reader) {
		failed <- assert.ErrorOf(c.Exec(t.Context(), terminal.Command{Args: []string{"sleep"}, Stdin: stdin, Stdout: io.Discard, Stderr: io.Discard}))
	}
	go exec(iotest.ErrReader(os.ErrDeadlineExceeded))
	<-g.begun
	assert.ErrorIs(t, "a command whose input cannot be read", <-failed, os.ErrDeadlineExceeded)
	if err := <-g.ended; err == nil {
		t.Error("a command lacks the cause of its end")
	}
	go exec(nil)
	<-g.begun
	end()
	err := <-failed
	assert.ErrorIs(t, "a command whose machine is gone", err, failure.ErrEndUnknown)
	if errors.Is(err, failure.ErrUnreachable) {
		t.Errorf("%v would be tried again", err)
	}
	assert.ErrorIs(t, "a stream whose machine is gone", explainError(&websocket.CloseError{Code: websocket.CloseAbnormalClosure}), failure.ErrUnreachable, "the machine closed the connection")
}

// TestLeftCommand checks that a command ends whose caller has left.
func TestLeftCommand(t *testing.T) {
	t.Parallel()
	g := &guestStub{ended: make(chan error, 1)}
	c, _ := serveGuest(t.Context(), t, g)
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		failed <- assert.ErrorOf(c.Exec(ctx, terminal.Command{Args: []string{"sleep"}, Stdin: blocked{}, Stdout: io.Discard, Stderr: io.Discard}))
	}()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) && !errors.Is(err, failure.ErrUnreachable) {
		t.Errorf("the caller gets %v", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	s, err := c.openStream(ctx, execPath)
	assert.NoError(t, err)
	assert.NoError(t, s.SendJSON(terminal.Control.Start, commandMessage{Args: []string{"sleep"}}))
	cancel()
	if err := <-g.ended; err == nil {
		t.Error("a command lacks the cause of its end")
	}
}

// TestCommandOfEarlierClient checks that a command of a client that does not know noStdin gets its input.
func TestCommandOfEarlierClient(t *testing.T) {
	t.Parallel()
	c, _ := serveGuest(t.Context(), t, &guestStub{})
	s, err := c.openStream(t.Context(), execPath)
	assert.NoError(t, err)
	assert.NoError(t, s.Send(terminal.Control.Start, []byte(`{"args":["cat"]}`)))
	assert.NoError(t, errors.Join(s.Send(terminal.Input, []byte("text")), s.Send(terminal.Input, nil)))
	channel, content, err := s.Receive()
	assert.NoError(t, err)
	assert.True(t, channel == terminal.Output && string(content) == "text", "channel %d has %q, want the input as output", channel, content)
}

// blocked is an input from which nothing can be read yet.
type blocked struct{}

func (blocked) Read([]byte) (int, error) { select {} }

// echo is a console that prints what is typed.
type echo struct {
	*io.PipeReader
	*io.PipeWriter
}

func (e echo) Close() error { return errors.Join(e.PipeReader.Close(), e.PipeWriter.Close()) }

func TestConsoleOverStream(t *testing.T) {
	t.Parallel()
	closed := make(chan struct{}, 2)
	g := &guestStub{console: func(ctx context.Context, types bool) io.ReadWriteCloser {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { _ = w.Close() })
		if !types {
			_ = w.Close()
		}
		return closing{echo{r, w}, closed}
	}}
	c, _ := serveGuest(t.Context(), t, g)
	console, err := c.Console(t.Context(), true)
	assert.NoError(t, err)
	for _, text := range []string{"login: ", strings.Repeat("x", 3*terminal.ChunkSize)} {
		assert.NoError(t, assert.ErrorOf(io.WriteString(console, text)))
		got := make([]byte, len(text))
		if _, err := io.ReadFull(console, got); err != nil || string(got) != text {
			t.Errorf("%.10q comes back as %.10q, %v", text, got, err)
		}
	}
	assert.NoError(t, console.Close())
	<-closed
	if _, err := console.Write([]byte("more")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed console takes input: %v", err)
	}
	ended, err := c.Console(t.Context(), false)
	assert.NoError(t, err)
	if rest, err := io.ReadAll(ended); err != nil || len(rest) > 0 {
		t.Errorf("the console of a machine that has ended reads %q, %v", rest, err)
	}
	<-closed
	g.err = failure.ErrTaken
	assert.ErrorIs(t, "another one who types", assert.ErrorOf(c.Console(t.Context(), true)), failure.ErrTaken)
}

// closing says when a console was closed.
type closing struct {
	io.ReadWriteCloser

	closed chan<- struct{}
}

func (c closing) Close() error {
	c.closed <- struct{}{}
	return c.ReadWriteCloser.Close()
}

// TestStreamsAreBounded checks that a machine refuses streams when it has many, answers calls all the
// while, and takes another stream once one has ended.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	c, controls := serveGuest(t.Context(), t, &guestStub{console: func(ctx context.Context, _ bool) io.ReadWriteCloser {
		r, w := io.Pipe()
		context.AfterFunc(ctx, func() { _ = w.Close() })
		return echo{r, w}
	}})
	var open []io.Closer
	for range failure.MaxStreams {
		console, err := c.Console(t.Context(), false)
		assert.NoError(t, err)
		open = append(open, console)
	}
	assert.ErrorIs(t, "one more stream", assert.ErrorOf(c.Console(t.Context(), false)), failure.ErrTooManyStreams, "32 commands and consoles")
	assert.NoError(t, assert.ErrorOf(controls.Status(t.Context())))
	assert.NoError(t, open[0].Close())
	assert.Eventually(t, "another stream is taken", func(testing.TB) error { return assert.ErrorOf(c.Console(t.Context(), false)) })
}

// TestNetworkStatistics checks that figures arrive as they are, and that none are taken which no machine has.
func TestNetworkStatistics(t *testing.T) {
	t.Parallel()
	want, err := (&guestStub{}).NetworkStatistics(t.Context())
	assert.NoError(t, err)
	for name, change := range map[string]func(*report.NetworkStatistics){
		"":                   func(*report.NetworkStatistics) {},
		"a later reason":     func(n *report.NetworkStatistics) { n.LastRefused[0].Reason = "OfALaterVersion" },
		"a long name":        func(n *report.NetworkStatistics) { n.LastRefused[0].Target = strings.Repeat("x", report.MaxTarget) },
		"less than none":     func(n *report.NetworkStatistics) { n.Flows = -1 },
		"too many refusals":  func(n *report.NetworkStatistics) { n.LastRefused = slices.Repeat(n.LastRefused, report.MaxRefusals+1) },
		"an escape":          func(n *report.NetworkStatistics) { n.LastRefused[0].Target = "\x1b[2J" },
		"right to left":      func(n *report.NetworkStatistics) { n.LastRefused[0].Target = "a\u202eb" },
		"a longer name":      func(n *report.NetworkStatistics) { n.LastRefused[0].Target = strings.Repeat("x", report.MaxTarget+1) },
		"a sentence":         func(n *report.NetworkStatistics) { n.LastRefused[0].Reason = "call this number" },
		"no reason":          func(n *report.NetworkStatistics) { n.LastRefused[0].Reason = "" },
		"an odd protocol":    func(n *report.NetworkStatistics) { n.LastRefused[0].Protocol = "tcp\n" },
		"refused, but never": func(n *report.NetworkStatistics) { n.LastRefused[0].Count = 0 },
		"refused at no time": func(n *report.NetworkStatistics) { n.LastRefused[0].Last = time.Time{} },
	} {
		n := want
		n.LastRefused = slices.Clone(want.LastRefused)
		change(&n)
		body, err := json.Marshal(n)
		assert.NoError(t, err)
		c := answerRaw(t, func(conn net.Conn) {
			_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		})
		got, err := c.NetworkStatistics(t.Context())
		switch name {
		case "", "a later reason", "a long name":
			if err != nil || !reflect.DeepEqual(got, n) {
				t.Errorf("%q: got %+v, %v, want %+v", name, got, err, n)
			}
		default:
			assert.ErrorIs(t, name, err, failure.ErrProtocol)
		}
	}
}

// TestOddMessages checks that either end of a stream ends it at an invalid message.
func TestOddMessages(t *testing.T) {
	t.Parallel()
	g := &guestStub{ended: make(chan error, 1)}
	c, _ := serveGuest(t.Context(), t, g)
	c.dialer.WriteBufferSize = 2 * maxInput // a message is one frame, whose length comes first
	for name, messages := range map[string][][]byte{
		"empty":          {{}},
		"no start":       {{terminal.Input, 'x'}},
		"no list":        {{terminal.Control.Start, 'x'}},
		"unknown":        {[]byte("\x03{\"args\":[\"sleep\"]}"), {9}},
		"another start":  {[]byte("\x03{\"args\":[\"sleep\"]}"), []byte("\x03{\"args\":[\"sleep\"]}")},
		"much too large": {[]byte("\x03{\"args\":[\"sleep\"]}"), make([]byte, maxInput+1)},
	} {
		ws, err := c.openWebSocket(t.Context(), execPath)
		assert.NoError(t, err)
		for _, m := range messages {
			_ = ws.WriteMessage(websocket.BinaryMessage, m) // the machine may have closed the connection
		}
		if _, content, err := ws.ReadMessage(); err == nil && !bytes.Contains(content, []byte("EndUnknown")) {
			t.Errorf("%s: the machine answers %q", name, content)
		}
		if len(messages) > 1 {
			if err := <-g.ended; err == nil {
				t.Error("a command lacks the cause of its end")
			}
		}
	}
	for text, want := range map[string]error{
		"{}": nil, `{"exitCode":7}`: nil, `{"failure":"Busy"}`: failure.ErrBusy, `{"failure":"hunter2"}`: failure.ErrProtocol, "hunter2": failure.ErrProtocol, "": failure.ErrProtocol,
	} {
		_, err := readOutcome([]byte(text))
		assert.ErrorIs(t, fmt.Sprintf("the outcome %q", text), err, want)
	}
	if !reflect.DeepEqual(failure.NameOf(fmt.Errorf("x: %w", failure.ErrCommandNotFound)), "CommandNotFound") {
		t.Error("a wrapped failure has another name")
	}
}

// TestEndlessHandshake checks that a machine that answers a stream with a header without end is left soon.
func TestEndlessHandshake(t *testing.T) {
	t.Parallel()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = conn.Close() }()
		line := []byte("X-Odd: " + strings.Repeat("x", maxHandshake) + "\r\n")
		_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\n")
		for sent := 0; err == nil && sent < 256*maxHandshake; sent += len(line) {
			_, err = conn.Write(line)
		}
	}))
	t.Cleanup(s.Close)
	assert.ErrorIs(t, "a console", assert.ErrorOf(clientOf(s).Console(t.Context(), false)), failure.ErrProtocol)
}

// FuzzMachine checks that what a machine sends by a stream, which may be a guest that has broken out, makes its
// client neither return more than was sent nor fail with words of the machine.
func FuzzMachine(f *testing.F) {
	for _, sent := range []string{
		"\x82\x03\x01hi\x82\x03\x02no\x82\x0f\x04{\"exitCode\":7}", "\x82\x13\x04{\"failure\":\"Busy\"}", "\x82\x15\x04{\"failure\":\"hunter\"}",
		"\x02\x02\x01h\x80\x01i", "\x82\x00", "\x82\x01\x09", "\x81\x02\x01a", "\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff\x01", "\x88\x09\x03\xe8hunter2", "\x89\x00\x8a\x00", "",
	} {
		f.Add([]byte(sent))
	}
	var sent atomic.Pointer[[]byte]
	machine := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		conn := ws.NetConn().(*tls.Conn)
		_, _ = conn.Write(*sent.Load())
		_ = conn.CloseWrite()
		_, _ = io.Copy(io.Discard, conn) // until the client has left
		_ = conn.Close()
	}))
	f.Cleanup(machine.Close)
	c := clientOf(machine)
	f.Fuzz(func(t *testing.T, content []byte) {
		sent.Store(&content)
		var out bytes.Buffer
		_, execErr := c.Exec(t.Context(), terminal.Command{Args: []string{"x"}, Stdout: &out, Stderr: &out})
		console, err := c.Console(t.Context(), false)
		assert.NoError(t, err)
		printed, readErr := io.ReadAll(console)
		assert.NoError(t, console.Close())
		if out.Len() > len(content) || len(printed) > len(content) {
			t.Errorf("%d bytes become %d and %d", len(content), out.Len(), len(printed))
		}
		for _, err := range []error{execErr, readErr} {
			isKnown := err == nil || errors.Is(err, failure.ErrProtocol) || errors.Is(err, failure.ErrUnreachable) || errors.Is(err, failure.ByName(failure.NameOf(err)))
			if !isKnown || err != nil && strings.Contains(err.Error(), "hunter") {
				t.Errorf("%q: it fails with %v", content, err)
			}
		}
	})
}
