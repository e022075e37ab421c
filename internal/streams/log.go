// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// serveLog responds with the output that the server has printed.
func (c *call) serveLog() error {
	reader, err := capability[driver.LogReader](c)
	if err != nil {
		return err
	}
	p := parameters{Values: c.r.URL.Query()}
	o := driver.LogOptions{
		Follow: p.readFlag("follow"), Previous: p.readFlag("previous"), TailLines: p.readNumber("tailLines", 0, math.MaxInt64),
		Attached: p.readFlag("attached"),
	}
	for name, to := range map[string]*int64{"skipStdout": &o.SkipStdout, "skipStderr": &o.SkipStderr} {
		if n := p.readNumber(name, 0, math.MaxInt64/2); n != nil {
			*to = *n
		}
	}
	if p.err != nil {
		return p.err
	}
	keepsApart := websocket.IsWebSocketUpgrade(c.r)
	if keepsApart {
		if err := checkHandshake(c.r, c.stream); err != nil {
			return err
		}
	}
	log, err := withTimeout(c, func() (io.ReadCloser, error) { return reader.Logs(c.ctx, c.vm.UID, o) })
	if err != nil {
		return err
	}
	closed := sync.OnceFunc(func() { _ = log.Close() })
	context.AfterFunc(c.ctx, closed)
	defer closed()
	if keepsApart {
		return c.overWebSocket(func(s *session) error {
			return copyLog(s.Writer(terminal.Output), s.Writer(terminal.Errors), log, o)
		})
	}
	c.answered = true
	setHeader(c.w, "text/plain; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	if _, err := (body{c}).Write(nil); err != nil { // the client sees that the log is there
		return err
	}
	return copyLog(body{c}, body{c}, log, o)
}

// copyLog copies a log to its end. A log that does not keep its streams apart is all standard output.
func copyLog(stdout, stderr io.Writer, log io.ReadCloser, o driver.LogOptions) error {
	split, ok := log.(driver.SplitLog)
	if !ok {
		if _, err := io.CopyN(io.Discard, log, o.SkipStdout); err != nil {
			return terminal.IgnoreEOF(err)
		}
		return terminal.Copy(stdout, log)
	}
	for buffer := make([]byte, terminal.ChunkSize); ; {
		n, isStderr, err := split.ReadStream(buffer)
		to := stdout
		if isStderr {
			to = stderr
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return terminal.IgnoreEOF(err)
		}
	}
}

// body is the response as it comes. A client that does not read ends the stream.
type body struct{ call *call }

// Write implements io.Writer.
func (b body) Write(p []byte) (int, error) {
	response := http.NewResponseController(b.call.w)
	_ = response.SetWriteDeadline(b.call.Clock.Now().Add(b.call.times.write)) // every connection can
	n, err := b.call.w.Write(p)
	b.call.out.Add(int64(n))
	b.call.recordTraffic()
	if err == nil {
		err = response.Flush()
	}
	if err != nil {
		return n, writeError(err)
	}
	_ = response.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream then, though nothing is written
	return n, nil
}
