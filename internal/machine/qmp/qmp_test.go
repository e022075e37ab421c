// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qmp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/machine/qmp"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const greeting = `{"QMP": {"version": {"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": ""}, "capabilities": ["oob"]}}` + "\n"

// mock is the other end of a connection, controlled by the test.
type mock struct {
	t     *testing.T
	conn  net.Conn
	lines *bufio.Scanner
}

// dialMock connects a client to a mock that play controls.
func dialMock(ctx context.Context, t *testing.T, onEvent func(qmp.Event), play func(m *mock)) (*qmp.Client, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "unix", path)
	assert.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		play(&mock{t: t, conn: conn, lines: bufio.NewScanner(conn)})
	}()
	c, err := qmp.Dial(ctx, path, onEvent)
	t.Cleanup(func() {
		if c != nil {
			c.Close()
		}
		_ = listener.Close()
		<-done
	})
	return c, err
}

func (m *mock) say(text string) { _, _ = m.conn.Write([]byte(text)) }

// hear returns the next command and its id; "" when the client closed the connection.
func (m *mock) hear() (string, json.Number) {
	if !m.lines.Scan() {
		return "", ""
	}
	var command struct {
		Execute string      `json:"execute"`
		ID      json.Number `json:"id"`
	}
	if err := json.Unmarshal(m.lines.Bytes(), &command); err != nil {
		m.t.Errorf("the client sent %s: %v", m.lines.Bytes(), err)
	}
	return command.Execute, command.ID
}

func (m *mock) begin() {
	m.say(greeting)
	command, id := m.hear()
	if command != "qmp_capabilities" {
		m.t.Errorf("the client began with %q", command)
	}
	m.answer(id, `{}`)
}

func (m *mock) answer(id json.Number, value string) {
	m.say(`{"return": ` + value + `, "id": ` + id.String() + "}\n")
}

func (m *mock) untilHungUp() {
	for {
		if command, _ := m.hear(); command == "" {
			return
		}
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	events := make(chan string, 1)
	c, err := dialMock(t.Context(), t, func(e qmp.Event) { events <- e.Name }, func(m *mock) {
		m.begin()
		_, id := m.hear()
		m.say(`{"timestamp": {"seconds": 1700000000, "microseconds": 5}, "event": "STOP", "data": {"a": 1}}` + "\n")
		m.answer(id, `{"status": "running"}`)
		m.untilHungUp()
	})
	assert.NoError(t, err)
	var status struct{ Status string }
	err = c.Execute(t.Context(), "query-status", nil, &status)
	assert.True(t, err == nil && status.Status == "running", "got the status %q and error %v", status.Status, err)
	assert.Equal(t, "got the event", <-events, "STOP")
}

func TestRefusal(t *testing.T) {
	t.Parallel()
	c, err := dialMock(t.Context(), t, nil, func(m *mock) {
		m.begin()
		_, id := m.hear()
		m.say(`{"error": {"class": "GenericError", "desc": "no such thing"}, "id": ` + id.String() + "}\n")
		_, id = m.hear()
		m.answer(id, `"text"`)
		m.untilHungUp()
	})
	assert.NoError(t, err)
	err = c.Execute(t.Context(), "frobnicate", nil, nil)
	refusal, ok := errors.AsType[*qmp.Error](err)
	assert.True(t, ok && refusal.Class == "GenericError" && strings.Contains(err.Error(), "refused frobnicate: no such thing"), "got the error %v", err)
	var number int
	assert.ErrorSays(t, "an answer of the wrong type", c.Execute(t.Context(), "count", nil, &number), "answer to count")
}

// TestLateAnswer checks that an answer which comes after its caller has left is dropped.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	slow, leave := context.WithCancel(t.Context())
	c, err := dialMock(t.Context(), t, nil, func(m *mock) {
		m.begin()
		_, first := m.hear()
		leave()
		_, second := m.hear()
		m.answer(first, `1`)
		m.answer(second, `2`)
		m.untilHungUp()
	})
	assert.NoError(t, err)
	assert.ErrorIs(t, "a command without an answer", c.Execute(slow, "slow", nil, nil), context.Canceled)
	var got int
	err = c.Execute(t.Context(), "next", nil, &got)
	assert.True(t, err == nil && got == 2, "got %d and error %v, want the second answer", got, err)
}

// TestPeerThatReadsNothing checks that a command which QEMU does not read ends with its context,
// and the connection with it, since the command was sent in part.
func TestPeerThatReadsNothing(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	unread, leave := context.WithCancel(t.Context())
	c, err := dialMock(t.Context(), t, nil, func(m *mock) {
		m.begin()
		_, _ = m.conn.Read(make([]byte, 1)) // so that a part was sent
		leave()
		<-over
	})
	t.Cleanup(func() { close(over) })
	assert.NoError(t, err)
	more := strings.Repeat("x", 4<<20) // than a socket's buffer has room for
	assert.ErrorIs(t, "a command that is not read", c.Execute(unread, "unread", more, nil), context.Canceled)
	<-c.Done()
}

func TestBadPeers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		play func(m *mock, leave func())
		says string
	}{
		"hangs up":           {func(*mock, func()) {}, "QEMU closed the connection"},
		"no QMP":             {func(m *mock, _ func()) { m.say("220 ready\n"); m.untilHungUp() }, "not QMP"},
		"endless line":       {func(m *mock, _ func()) { m.say(`"` + strings.Repeat("x", 5<<20)) }, "token too long"},
		"no greeting":        {func(m *mock, _ func()) { m.say(`{"event": "STOP"}` + "\n"); m.untilHungUp() }, "greeting: context canceled"},
		"greets only":        {func(m *mock, leave func()) { m.say(greeting); m.hear(); leave(); m.untilHungUp() }, "qmp_capabilities: context canceled"},
		"hangs up on asking": {func(m *mock, _ func()) { m.say(greeting); m.hear() }, "qmp_capabilities: QEMU closed the connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			onEvent := func(qmp.Event) { leave() } // it is connected then
			assert.ErrorSays(t, "Dial", assert.ErrorOf(dialMock(ctx, t, onEvent, func(m *mock) { c.play(m, leave) })), c.says)
		})
	}
}

func TestHangUpWhileWaiting(t *testing.T) {
	t.Parallel()
	c, err := dialMock(t.Context(), t, nil, func(m *mock) {
		m.begin()
		m.hear()
	})
	assert.NoError(t, err)
	assert.ErrorSays(t, "a command without an answer", c.Execute(t.Context(), "quit", nil, nil), "closed the connection")
	<-c.Done()
	assert.True(t, c.Execute(t.Context(), "again", nil, nil) != nil, "a connection that is over takes commands")
}

// startQEMU starts a machine without hardware.
func startQEMU(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "qmp")
	cmd := exec.CommandContext(t.Context(), framework.QEMUBinary(t),
		"-M", "none", "-nodefaults", "-display", "none", "-S", "-qmp", "unix:"+path+",server=on,wait=off")
	assert.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return path
}

// dial connects to a QEMU that may not listen yet.
func dial(t *testing.T, path string, onEvent func(qmp.Event)) *qmp.Client {
	t.Helper()
	var c *qmp.Client
	assert.Eventually(t, "QEMU answers", func(t testing.TB) (err error) {
		c, err = qmp.Dial(t.Context(), path, onEvent)
		return err
	})
	t.Cleanup(c.Close)
	return c
}

func TestRealQEMU(t *testing.T) {
	t.Parallel()
	path := startQEMU(t)
	events := make(chan string, 10)
	c := dial(t, path, func(e qmp.Event) { events <- e.Name })
	var status struct{ Status string }
	err := c.Execute(t.Context(), "query-status", nil, &status)
	assert.True(t, err == nil && status.Status == "prelaunch", "got the status %q and error %v", status.Status, err)
	assert.ReportError(t, c.Execute(t.Context(), "cont", nil, nil))
	assert.Equal(t, "got the event", <-events, "RESUME")
	_, ok := errors.AsType[*qmp.Error](c.Execute(t.Context(), "no-such-command", nil, nil))
	assert.True(t, ok, "QEMU took a command that there is not")
	_ = c.Execute(t.Context(), "quit", nil, nil)
	<-c.Done()
}

// TestOneAtATime checks that clients are queued, also while the queue is full, and that
// each gets its turn.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	path := startQEMU(t)
	first := dial(t, path, nil)
	ctx, leave := context.WithCancel(t.Context())
	second := make(chan error)
	go func() {
		_, err := qmp.Dial(ctx, path, nil)
		second <- err
	}()
	for range 10 { // QEMU looks at all its connections in between
		assert.NoError(t, first.Execute(t.Context(), "query-status", nil, nil))
	}
	leave()
	assert.ErrorIs(t, "while another client is served", <-second, context.Canceled)
	served := make(chan error)
	for range 6 {
		go func() {
			c, err := qmp.Dial(t.Context(), path, nil)
			if err == nil {
				c.Close()
			}
			served <- err
		}()
	}
	assert.ErrorIs(t, "the client that is served", first.Execute(t.Context(), "query-status", nil, nil), nil)
	first.Close()
	for range 6 {
		assert.ReportError(t, <-served)
	}
}
