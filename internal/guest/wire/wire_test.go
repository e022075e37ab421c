// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/test/assert"
)

// split records what Sessions finds.
type split struct {
	ids  [][]byte
	data [][]byte // of each session
}

func feed(nonce []byte, pieces ...[]byte) *split {
	got := &split{}
	s := NewSessions(nonce)
	s.Begin = func(id []byte) { got.ids, got.data = append(got.ids, bytes.Clone(id)), append(got.data, nil) }
	s.Data = func(p []byte) { got.data[len(got.data)-1] = append(got.data[len(got.data)-1], p...) }
	for _, p := range pieces {
		s.Feed(bytes.Clone(p))
	}
	return got
}

// TestSessions checks that a hello is found wherever it is in the stream, however the stream is cut.
func TestSessions(t *testing.T) {
	t.Parallel()
	nonce := []byte("abcabcabd")
	id1, id2 := bytes.Repeat([]byte{1}, idLength), bytes.Repeat([]byte{2}, idLength)
	stream := bytes.Join([][]byte{[]byte("old abcabc"), nonce, id1, []byte("abcabcabcfirst abcab"), nonce, id2, []byte("second")}, nil)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // no secret
	for range 2000 {
		var pieces [][]byte
		for rest := stream; len(rest) > 0; {
			n := 1 + random.IntN(min(len(rest), 1+random.IntN(40)))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		got := feed(nonce, pieces...)
		assert.Require(t, len(got.ids) == 2 && bytes.Equal(got.ids[0], id1) && bytes.Equal(got.ids[1], id2), "%q has the sessions %q", pieces, got.ids)
		began, isFirst := strings.CutPrefix(string(got.data[0]), "abcabcabcfirst abcab")
		assert.Require(t, isFirst && bytes.HasPrefix(nonce, []byte(began)) && string(got.data[1]) == "second", "%q has the data %q", pieces, got.data)
	}
}

// TestSessionsWaitForNothing checks that data arrives at once though it ends like the beginning of a hello: the host may
// wait for the answer.
func TestSessionsWaitForNothing(t *testing.T) {
	t.Parallel()
	nonce := []byte("abcabcabd")
	for n := range nonce {
		data := append([]byte("data"), nonce[:n]...)
		got := feed(nonce, nonce, make([]byte, idLength), data)
		assert.True(t, string(got.data[0]) == string(data), "%q has come of %q", got.data[0], data)
	}
}

// FuzzSessions checks that all data but hellos arrives, and only once. The beginning of a hello may arrive, too.
func FuzzSessions(f *testing.F) {
	f.Add([]byte("aab"), []byte("aaaab"), uint8(2))
	f.Fuzz(func(t *testing.T, nonce, data []byte, piece uint8) {
		if len(nonce) == 0 || len(nonce) > maxNonce || bytes.Contains(data, nonce) || piece == 0 {
			return
		}
		pieces := [][]byte{nonce, make([]byte, idLength)}
		for rest := data; len(rest) > 0; {
			n := min(len(rest), int(piece))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		pieces = append(pieces, nonce, make([]byte, idLength))
		got := feed(nonce, pieces...)
		// The mark may also be found where the data and the next nonce meet, so both begin it.
		if len(got.data) == 0 || !bytes.HasPrefix(slices.Concat(data, nonce), got.data[0]) || max(len(data)-len(got.data[0]), len(got.data[0])-len(data)) >= len(nonce) {
			t.Errorf("%q in %q: got %q", nonce, pieces, got.data)
		}
	})
}

// maxNonce is the longest nonce of the fuzzing.
const maxNonce = 64

// TestFrames checks that frames pass, and that other data is refused before it takes memory.
func TestFrames(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	assert.NoError(t, WriteFrame(&b, FrameStdout, []byte("out")))
	assert.NoError(t, WriteJSON(&b, FrameResponse, Response{Code: 3}))
	r := Reader{R: &b}
	for _, want := range []struct {
		kind Kind
		text string
	}{{FrameStdout, "out"}, {FrameResponse, `{"code":3}`}} {
		kind, payload, err := r.Next()
		if assert.NoError(t, err); kind != want.kind || string(payload) != want.text {
			t.Errorf("got %d %q, want %d %q", kind, payload, want.kind, want.text)
		}
	}
	_, _, err := r.Next()
	assert.True(t, errors.Is(err, io.EOF), "at the end: %v", err)
	assert.ErrorIs(t, "too long", WriteFrame(io.Discard, FrameStdout, make([]byte, MaxData+1)), ErrFrame)
	for name, text := range map[string]string{
		"kind 0": "\x00\x00\x00\x00\x00", "kind 99": "\x63\x00\x00\x00\x00", "4 GB": "\x05\xff\xff\xff\xff", "cut off": "\x05\x00\x00\x00\x02a",
		"end with data": "\x03\x00\x00\x00\x01a",
	} {
		r := Reader{R: bytes.NewReader([]byte(text))}
		_, _, err := r.Next()
		assert.ErrorIs(t, name, err, ErrFrame)
	}
}

// FuzzReader checks that whatever comes takes little memory.
func FuzzReader(f *testing.F) {
	f.Add([]byte("\x05\x00\x00\x00\x02ab"))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := Reader{R: bytes.NewReader(text)}
		for {
			kind, payload, err := r.Next()
			if err != nil {
				return
			}
			assert.True(t, len(payload) <= limits[kind], "kind %d has %d bytes", kind, len(payload))
		}
	})
}

// TestFilter checks that a guest can neither open streams nor ping, and that what it may send passes unchanged.
func TestFilter(t *testing.T) {
	t.Parallel()
	frame := func(version, kind byte, flags uint16, length uint32) []byte {
		h := make([]byte, muxHeader)
		h[0], h[1] = version, kind
		binary.BigEndian.PutUint16(h[2:], flags)
		binary.BigEndian.PutUint32(h[8:], length)
		return h
	}
	good := bytes.Join([][]byte{frame(0, muxWindow, 2, 1), frame(0, muxData, 0, 3), []byte("\x09\x09\x09"), frame(0, muxGoAway, 0, 0)}, nil)
	got, err := io.ReadAll(&Filter{R: bytes.NewReader(good)})
	if assert.NoError(t, err); !bytes.Equal(got, good) {
		t.Errorf("%x passes as %x", good, got)
	}
	for name, bad := range map[string][]byte{
		"ping": frame(0, muxPing, 1, 0), "stream": frame(0, muxData, flagSYN, 0), "version": frame(1, 0, 0, 0), "type": frame(0, 9, 0, 0),
		"long": frame(0, muxData, 0, maxMux+1),
	} {
		got, err := io.ReadAll(&Filter{R: bytes.NewReader(append(bytes.Clone(good), bad...))})
		assert.ErrorIs(t, name, err, ErrSession)
		assert.True(t, bytes.Equal(got, good), "%s: %x passes", name, got)
	}
}

// rwc joins the parts of a connection.
type rwc struct {
	io.Reader
	io.Writer
	io.Closer
}

// echo is a guest that sends back the data of a stream.
func echo(guest net.Conn, nonce []byte) {
	in, out := io.Pipe()
	s := NewSessions(nonce)
	began := make(chan struct{})
	s.Data = func(p []byte) { _, _ = out.Write(p) }
	s.Begin = func(id []byte) {
		go func() {
			_ = Answer(guest, id)
			close(began)
		}()
	}
	go func() {
		buffer := make([]byte, 100)
		for {
			n, err := guest.Read(buffer)
			if err != nil {
				_ = out.CloseWithError(err)
				return
			}
			s.Feed(buffer[:n])
		}
	}()
	_, _ = guest.Write([]byte("left over"))
	<-began
	session, _ := yamux.Server(rwc{in, &CoalescingWriter{W: guest}, guest}, Config())
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		_, _ = io.Copy(stream, stream)
		_ = stream.Close()
	}
}

// TestSession checks that a session works by the parts of this package, one write for each frame.
func TestSession(t *testing.T) {
	t.Parallel()
	host, guest := net.Pipe()
	nonce := []byte("0123456789")
	go echo(guest, nonce)
	rest, err := Greet(host, nonce)
	assert.NoError(t, err)
	session, err := yamux.Client(rwc{&Filter{R: rest}, &CoalescingWriter{W: host}, host}, Config())
	assert.NoError(t, err)
	defer func() { _ = session.Close() }()
	stream, err := session.OpenStream()
	assert.NoError(t, err)
	sent := bytes.Repeat([]byte("data"), 200_000)
	go func() {
		_, _ = stream.Write(sent)
		_ = stream.Close()
	}()
	assert.NoError(t, stream.SetReadDeadline(time.Time{}))
	got, err := io.ReadAll(stream)
	if assert.NoError(t, err); !bytes.Equal(got, sent) {
		t.Errorf("%d bytes come back of %d", len(got), len(sent))
	}
}
