// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/test/assert"
)

var nonce = bytes.Repeat([]byte{1}, 32)

// greet answers the greeting of a connection, and returns the guest's end of it.
func greet(guest net.Conn) error {
	hello := make([]byte, len(nonce)+16)
	if _, err := io.ReadFull(guest, hello); err != nil {
		return err
	}
	return wire.Answer(guest, hello[len(nonce):])
}

// dial returns a client of a guest that the function plays once it was greeted, and that has all verbs.
func dial(t testing.TB, play func(guest net.Conn)) *Client {
	t.Helper()
	c := dialUnasked(t, play)
	c.verbs.Store(&wire.Verbs)
	return c
}

// dialUnasked returns a client that has not asked the guest for its verbs.
func dialUnasked(t testing.TB, play func(guest net.Conn)) *Client {
	t.Helper()
	host, guest := net.Pipe()
	t.Cleanup(func() { _ = guest.Close() })
	go func() {
		if greet(guest) == nil {
			play(guest)
		}
	}()
	c, err := New(t.Context(), host, nonce)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// answering returns a guest that sends the same bytes on each stream, whatever it is asked.
func answering(answer []byte) func(net.Conn) {
	return func(guest net.Conn) {
		session, err := yamux.Server(guest, wire.Config())
		if err != nil {
			return
		}
		for {
			stream, err := session.AcceptStream()
			if err != nil {
				return
			}
			go func() {
				go func() { _, _ = io.Copy(io.Discard, stream) }()
				_, _ = stream.Write(answer)
				_ = stream.Close()
			}()
		}
	}
}

func frame(t testing.TB, kind wire.Kind, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	assert.NoError(t, wire.WriteFrame(&b, kind, []byte(text)))
	return b.Bytes()
}

// run makes a call of each kind, and returns its error.
func (c *Client) run(ctx context.Context, call string) (err error) {
	switch call {
	case "exec":
		_, err = c.Exec(ctx, Command{Exec: wire.Exec{Args: []string{"x"}}, Stdin: strings.NewReader("in"), Stdout: io.Discard, Stderr: io.Discard})
	case "interfaces":
		_, err = c.Interfaces(ctx)
	case "read":
		err = c.ReadFiles(ctx, "/", io.Discard)
	case "write":
		err = c.WriteFiles(ctx, "/", strings.NewReader("files"), io.Discard)
	}
	return err
}

var calls = []string{"exec", "interfaces", "read", "write"}

// TestBadAnswers checks that what cannot be right is refused.
func TestBadAnswers(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call   string
		answer []byte
		kind   error
		says   string
	}{
		"no JSON":           {"interfaces", frame(t, wire.FrameResponse, "rubbish"), ErrBadAnswer, ""},
		"no frame":          {"interfaces", []byte("\xff\xff\xff\xff\xff"), ErrBadAnswer, "kind 255 is unknown"},
		"output":            {"interfaces", frame(t, wire.FrameStdout, "x"), ErrBadAnswer, "kind 5"},
		"a name to be seen": {"interfaces", frame(t, wire.FrameResponse, `{"interfaces":[{"name":"eth\u001b[2J"}]}`), ErrBadAnswer, "invalid or too many network interfaces"},
		"a MAC":             {"interfaces", frame(t, wire.FrameResponse, `{"interfaces":[{"name":"e","mac":"x"}]}`), ErrBadAnswer, "invalid or too many network interfaces"},
		"a code":            {"exec", frame(t, wire.FrameResponse, `{"code":256}`), ErrBadAnswer, "code 256"},
		"a signal":          {"exec", frame(t, wire.FrameResponse, `{"code":1,"signal":9}`), ErrBadAnswer, "signal 9"},
		"too much taken":    {"exec", frame(t, wire.FrameTaken, "\x00\x10\x00\x00"), ErrBadAnswer, "kind 8"},
		"nothing":           {"exec", nil, ErrEndUnknown, ""},
		"a message":         {"exec", frame(t, wire.FrameResponse, `{"reason":"notFound","message":"a\u001b[2Jb"}`), ErrNotFound, "a[2Jb"},
		"a reason":          {"exec", frame(t, wire.FrameResponse, `{"reason":"\u001b","message":"why"}`), ErrRefused, "why"},
		"a request":         {"read", frame(t, wire.FrameRequest, "{}"), ErrBadAnswer, "kind 1"},
		"data":              {"write", frame(t, wire.FrameData, "x"), ErrBadAnswer, "kind 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := dial(t, answering(test.answer)).run(t.Context(), test.call)
			assert.ErrorIs(t, name, err, test.kind, test.says)
			assert.True(t, err == nil || !strings.ContainsRune(err.Error(), 0x1b), "%q could be a terminal's command", err)
		})
	}
}

// TestSilence checks that each call ends with its context, whatever the guest withholds.
func TestSilence(t *testing.T) {
	t.Parallel()
	data := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 0, 0, 0, 0, 1}, 100)
	for name, play := range map[string]func(net.Conn){
		"reads nothing": func(net.Conn) {},
		"says nothing":  func(guest net.Conn) { _, _ = io.Copy(io.Discard, guest) },
		"no end of frames": func(guest net.Conn) {
			_, _ = guest.Write(slices.Concat(data, []byte("x")))
			_, _ = io.Copy(io.Discard, guest)
		},
		"opens no streams": func(guest net.Conn) {
			_, _ = yamux.Server(guest, wire.Config())
		},
	} {
		for _, call := range calls {
			t.Run(name+", "+call, func(t *testing.T) {
				t.Parallel()
				c := dial(t, play)
				ctx, leave := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- c.run(ctx, call) }()
				select {
				case err := <-ended:
					t.Errorf("it ends before its caller leaves: %v", err)
				case <-time.After(20 * time.Millisecond):
				}
				leave()
				assert.True(t, assert.Receive(t, "the end of the call", ended) != nil, "it succeeds")
			})
		}
	}
}

// TestNoAnswer checks that a guest cannot hold the greeting, nor fill the host's memory with it.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	host, guest := net.Pipe()
	var sent atomic.Int64
	go func() {
		go func() { _, _ = io.Copy(io.Discard, guest) }()
		for {
			n, err := guest.Write(make([]byte, 64<<10))
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}()
	_, err := New(t.Context(), host, nonce)
	assert.ErrorIs(t, "a guest without an end", err, wire.ErrNoAnswer)
	assert.True(t, sent.Load() <= 2<<20, "%d bytes were read", sent.Load())
	other, silent := net.Pipe()
	defer func() { _ = silent.Close() }()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	_, err = New(ctx, other, nonce)
	assert.ErrorIs(t, "a caller that leaves", err, context.Canceled)
}

// TestFlood checks that a guest that opens streams or pings loses its session.
func TestFlood(t *testing.T) {
	t.Parallel()
	for name, header := range map[string][]byte{"ping": {0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1}, "stream": {0, 1, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0}} {
		c := dial(t, func(guest net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			for {
				if _, err := guest.Write(header); err != nil {
					return
				}
			}
		})
		assert.Receive(t, name+": the end of the session", closed(c.Done()))
	}
}

// closed returns a channel that has a value once another is closed.
func closed(done <-chan struct{}) <-chan bool {
	c := make(chan bool, 1)
	go func() {
		<-done
		c <- true
	}()
	return c
}

// TestUnfinished checks that streams that the guest does not end take the client's places only until
// the session ends.
func TestUnfinished(t *testing.T) {
	t.Parallel()
	response := frame(t, wire.FrameResponse, `{"interfaces":[]}`)
	c := dial(t, func(guest net.Conn) {
		session, err := yamux.Server(guest, wire.Config())
		if err != nil {
			return
		}
		for {
			stream, err := session.AcceptStream()
			if err != nil {
				return
			}
			_, _ = stream.Write(response)
		}
	})
	for range wire.MaxStreams {
		assert.NoError(t, assert.ErrorOf(c.Interfaces(t.Context())))
	}
	ctx, leave := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer leave()
	assert.ErrorIs(t, "one more", assert.ErrorOf(c.Interfaces(ctx)), ErrBusy)
	assert.NoError(t, c.Close())
	assert.ErrorIs(t, "after the end", assert.ErrorOf(c.Interfaces(t.Context())), ErrLost)
}

// FuzzClient has a guest send anything in place of a session, and on a stream, and checks that all
// calls end and say what they may.
func FuzzClient(f *testing.F) {
	f.Add([]byte("\x00\x01\x00\x02\x00\x00\x00\x01\x00\x00\x00\x00"), frame(f, wire.FrameResponse, `{"code":3}`))
	f.Add([]byte{}, append(frame(f, wire.FrameStdout, "out"), frame(f, wire.FrameTaken, "\x00\x00\x00\x02")...))
	f.Fuzz(func(t *testing.T, raw, answer []byte) {
		for _, play := range []func(net.Conn){answering(answer), func(guest net.Conn) {
			go func() { _, _ = io.Copy(io.Discard, guest) }()
			_, _ = guest.Write(raw)
			_ = guest.Close()
		}} {
			c := dial(t, play)
			for _, call := range calls {
				err := c.run(t.Context(), call)
				assert.True(t, err == nil || !strings.ContainsFunc(err.Error(), func(r rune) bool { return r < ' ' && r != '\n' || r == 0x7f }),
					"%q could be a terminal's command", err)
				assert.True(t, !errors.Is(err, context.DeadlineExceeded), "%s waits for a guest that is gone", call)
			}
			_ = c.Close()
		}
	})
}
