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
	for name, option := range map[string]*int64{"skipStdout": &o.SkipStdout, "skipStderr": &o.SkipStderr} {
		if n := p.readNumber(name, 0, math.MaxInt64/2); n != nil {
			*option = *n
		}
	}
	if p.err != nil {
		return p.err
	}
	usesWebSocket := websocket.IsWebSocketUpgrade(c.r)
	if usesWebSocket {
		if err := checkHandshake(c.r, c.stream); err != nil {
			return err
		}
	}
	log, err := withTimeout(c, func() (io.ReadCloser, error) { return reader.Logs(c.ctx, c.vm.UID, o) })
	if err != nil {
		return err
	}
	closeOnce := sync.OnceFunc(func() { _ = log.Close() })
	context.AfterFunc(c.ctx, closeOnce)
	defer closeOnce()
	if usesWebSocket {
		return c.serveWebSocket(func(s *session) error {
			return copyLog(s.Writer(terminal.Output), s.Writer(terminal.Errors), log, o)
		})
	}
	c.answered = true
	setHeader(c.w, "text/plain; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	if _, err := (responseBody{c}).Write(nil); err != nil { // flushes the header, so that a client that follows an empty log need not wait for it
		return err
	}
	return copyLog(responseBody{c}, responseBody{c}, log, o)
}

// copyLog copies a log until its end. A log that is not a driver.SplitLog goes to stdout.
func copyLog(stdout, stderr io.Writer, log io.ReadCloser, o driver.LogOptions) error {
	split, ok := log.(driver.SplitLog)
	if !ok {
		if _, err := io.CopyN(io.Discard, log, o.SkipStdout); err != nil {
			return terminal.IgnoreEOF(err)
		}
		return terminal.Copy(stdout, log)
	}
	return terminal.CopySplit(stdout, stderr, split)
}

// responseBody writes the body of the response, without buffering. A write fails if the client does not read in time.
type responseBody struct{ call *call }

// Write implements io.Writer.
func (b responseBody) Write(p []byte) (int, error) {
	response := http.NewResponseController(b.call.w)
	_ = response.SetWriteDeadline(b.call.Clock.Now().Add(b.call.times.write)) // every connection supports this
	n, err := b.call.w.Write(p)
	b.call.out.Add(int64(n))
	b.call.recordTraffic()
	if err == nil {
		err = response.Flush()
	}
	if err != nil {
		return n, writeError(err)
	}
	_ = response.SetWriteDeadline(time.Time{}) // at the deadline, HTTP/2 would end even a stream without a write
	return n, nil
}
