// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qmp

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// FuzzMessages checks that whatever a QEMU that its guest broke out of sends, a command gets
// the answer to itself or an error, events come as sent and in order, and the connection ends.
func FuzzMessages(f *testing.F) {
	const greeting, accepted = `{"QMP": {}}` + "\n", `{"return": {}, "id": 1}` + "\n"
	for _, text := range []string{
		greeting + accepted + `{"return": {"status": "running"}, "id": 2}` + "\n",
		greeting + accepted + `{"event": "STOP", "data": {"a": 1}}` + "\n" + `{"error": {"class": "x", "desc": "y"}, "id": 2}` + "\n",
		greeting + greeting + accepted + accepted + `{"id": 2}` + "\n", "null\n[]\n", `{"QMP": null}`, `{"id": -1}` + "\n", `{"id": 1e99}` + "\n",
		greeting + accepted + `{"return": ` + strings.Repeat("[", 20000), greeting + `{"error": null, "return": "x", "id": 1}` + "\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		var got []Event
		here, there := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, there) }()
		c := &Client{
			conn: here, onEvent: func(e Event) { got = append(got, e) }, waiting: map[uint64]chan message{},
			greeted: make(chan struct{}), done: make(chan struct{}),
		}
		first, answer := c.registerCommand()
		go func() {
			_, _ = there.Write(sent)
			_ = there.Close()
		}()
		c.readMessages()
		checkEnd(t, c, sent, got)
		checkAnswer(t, sent, first, answer)
	})
}

// checkEnd checks that the connection is over and that no command waits for ever.
func checkEnd(t *testing.T, c *Client, sent []byte, got []Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := c.Execute(ctx, "query-status", nil, nil)
	assert.True(t, err != nil && ctx.Err() == nil && c.Err() != nil, "after the end, a command has the error %v, and the connection %v", err, c.Err())
	assert.True(t, len(got) <= bytes.Count(sent, []byte("\n"))+1, "%d events came of %q", len(got), sent)
	for _, e := range got {
		assert.True(t, e.Name != "" && (e.Data == nil || bytes.Contains(sent, e.Data)), "the event %q with %s came of %q", e.Name, e.Data, sent)
	}
}

// checkAnswer checks that an answer is one that was sent for the command.
func checkAnswer(t *testing.T, sent []byte, id uint64, answer chan message) {
	t.Helper()
	select {
	case m := <-answer:
		var result json.RawMessage
		err := m.decodeInto("x", &result)
		refused := new(Error)
		assert.True(t, m.ID == id && (err != nil || bytes.Contains(sent, result)) && (!errors.As(err, &refused) || refused.Command == "x"),
			"%q answers command %d with %+v: %v", sent, id, m, err)
	default:
	}
}
