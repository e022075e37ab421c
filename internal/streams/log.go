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
	}
	if p.err != nil {
		return p.err
	}
	log, err := withTimeout(c, func() (io.ReadCloser, error) { return reader.Logs(c.ctx, c.vm.UID, o) })
	if err != nil {
		return err
	}
	closed := sync.OnceFunc(func() { _ = log.Close() })
	context.AfterFunc(c.ctx, closed)
	defer closed()
	c.answered = true
	setHeader(c.w, "text/plain; charset=utf-8")
	c.w.WriteHeader(http.StatusOK)
	if _, err := (body{c}).Write(nil); err != nil { // the client sees that the log is there
		return err
	}
	return terminal.Copy(body{c}, log)
}

// body is the response as it comes. A client that does not read ends the stream.
type body struct{ *call }

// Write implements io.Writer.
func (b body) Write(p []byte) (int, error) {
	response := http.NewResponseController(b.w)
	_ = response.SetWriteDeadline(b.Clock.Now().Add(b.times.write)) // every connection can
	n, err := b.w.Write(p)
	b.out.Add(int64(n))
	b.recordTraffic()
	if err == nil {
		err = response.Flush()
	}
	if err != nil {
		return n, writeError(err)
	}
	_ = response.SetWriteDeadline(time.Time{}) // HTTP/2 would end the stream then, though nothing is written
	return n, nil
}
