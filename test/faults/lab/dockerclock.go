// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// dockerClock is a proxy between controllers and a Docker Engine. After StepClock it changes the
// later times in the engine's answers, as if the engine's clock was ahead or behind. It does not
// change earlier times.
type dockerClock struct {
	server *http.Server

	mu    sync.Mutex
	since time.Time
	step  time.Duration
}

// openDockerClock opens a proxy for an engine at a socket.
func openDockerClock(socket, host string) (*dockerClock, error) {
	network, engine, _ := strings.Cut(host, "://")
	dialer := &net.Dialer{}
	c := &dockerClock{}
	forward := &httputil.ReverseProxy{
		FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "docker"})
			c.changeQuery(r.Out.URL)
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, engine)
		}},
		ModifyResponse: c.change,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // cuts the connection
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "unix", socket)
	if err != nil {
		return nil, err
	}
	c.server = &http.Server{Handler: forward, ReadHeaderTimeout: time.Minute, ErrorLog: forward.ErrorLog}
	go func() { _ = c.server.Serve(l) }()
	return c, nil
}

// changeQuery changes the parameter since of a request for events back to the engine's time: the
// controller took it from an answer whose times were changed.
func (c *dockerClock) changeQuery(u *url.URL) {
	c.mu.Lock()
	step := c.step
	c.mu.Unlock()
	query := u.Query()
	if at, err := time.Parse(time.RFC3339Nano, query.Get("since")); err == nil && step != 0 {
		query.Set("since", at.Add(-step).Format(time.RFC3339Nano))
		u.RawQuery = query.Encode()
	}
}

// change changes the times in an answer, line by line: the engine sends each object in one line.
func (c *dockerClock) change(res *http.Response) error {
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return nil
	}
	res.ContentLength = -1
	res.Header.Del("Content-Length")
	res.Body = &changedLines{from: res.Body, lines: bufio.NewReader(res.Body), change: c.changeLine}
	return nil
}

// engineTimes matches texts such as "2026-01-02T03:04:05.6Z", and fields with a number of seconds
// or nanoseconds since 1970.
var engineTimes = regexp.MustCompile(`"\d{4}-\d\d-\d\dT[0-9:.]+(?:Z|[+-]\d\d:\d\d)"|"(?:Created|time|timeNano)":\d+`)

func (c *dockerClock) changeLine(line string) string {
	c.mu.Lock()
	since, step := c.since, c.step
	c.mu.Unlock()
	if step == 0 {
		return line
	}
	return engineTimes.ReplaceAllStringFunc(line, func(match string) string {
		if strings.Contains(match, `":`) { // a field
			return changeNumber(match, since, step)
		}
		return changeText(match, since, step)
	})
}

func changeText(quoted string, since time.Time, step time.Duration) string {
	at, err := time.Parse(`"`+time.RFC3339Nano+`"`, quoted)
	if err != nil || at.Before(since) {
		return quoted
	}
	return at.Add(step).Format(`"` + time.RFC3339Nano + `"`)
}

func changeNumber(field string, since time.Time, step time.Duration) string {
	key, number, _ := strings.Cut(field, ":")
	n, unit := parseInt(number), time.Second
	if key == `"timeNano"` {
		unit = time.Nanosecond
	}
	if n*int64(unit) < since.Truncate(unit).UnixNano() {
		return field
	}
	return key + ":" + strconv.FormatInt(n+int64(step/unit), 10)
}

func parseInt(digits string) int64 {
	n, _ := strconv.ParseInt(digits, 10, 64)
	return n
}

// changedLines is a reader that changes each line of a stream.
type changedLines struct {
	from   io.Closer
	lines  *bufio.Reader
	change func(string) string
	rest   string
}

// Read implements io.Reader.
func (l *changedLines) Read(to []byte) (int, error) {
	if l.rest == "" {
		line, err := l.lines.ReadString('\n')
		if line == "" {
			return 0, err
		}
		l.rest = l.change(line)
	}
	n := copy(to, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

// Close implements io.Closer.
func (l *changedLines) Close() error { return l.from.Close() }

// StepClock steps the clock that the controllers of a world see.
func (e Docker) StepClock(w *World, step time.Duration) error {
	c := e.world(w).clock
	if c == nil {
		return errors.New("the clock of this engine cannot step")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.step = time.Now(), step
	return nil
}
