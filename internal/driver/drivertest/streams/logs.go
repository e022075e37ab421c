// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// readLog returns a log up to its current end, or up to the server's end if o follows the log.
func readLog(t *testing.T, d driver.LogReader, uid types.UID, o driver.LogOptions) string {
	t.Helper()
	log, err := d.Logs(t.Context(), uid, o)
	assert.NoError(t, err)
	text, err := io.ReadAll(log)
	assert.NoError(t, errors.Join(err, log.Close()))
	return string(text)
}

// waitForLog waits until the log has all words in this order.
func (e *Env) waitForLog(t *testing.T, uid types.UID, o driver.LogOptions, words ...string) {
	t.Helper()
	d := optional[driver.LogReader](t, e.Driver)
	assert.Eventually(t, "the log", func(testing.TB) error {
		text := readLog(t, d, uid, o)
		rest := text
		for _, word := range words {
			_, after, found := strings.Cut(rest, word)
			if !found {
				return fmt.Errorf("the log lacks %s, or has it out of the order %v: %q", word, words, text)
			}
			rest = after
		}
		return nil
	})
}

func testLogs(t *testing.T, e *Env) {
	optional[driver.LogReader](t, e.Driver)
	spec, s := e.Start(t, "logs")
	words := []string{e.print(t, s), e.print(t, s), e.print(t, s)}
	e.waitForLog(t, spec.UID, driver.LogOptions{}, words...)
	e.Stop(t, spec)
	e.waitForLog(t, spec.UID, driver.LogOptions{}, words...)
	e.waitForLog(t, spec.UID, driver.LogOptions{Follow: true}, words...)
}

// testLogsTail needs a guest that prints each word as a line.
func testLogsTail(t *testing.T, e *Env) {
	d := optional[driver.LogReader](t, e.Driver)
	spec, s := e.Start(t, "logs-tail")
	words := []string{e.print(t, s), e.print(t, s), e.print(t, s)}
	e.waitForLog(t, spec.UID, driver.LogOptions{}, words...)
	for lines, want := range map[int64][]string{0: nil, 1: words[2:], 2: words[1:], 1000: words} {
		text := readLog(t, d, spec.UID, driver.LogOptions{TailLines: &lines})
		for i, word := range words {
			found, isWanted := strings.Contains(text, word), i >= len(words)-len(want)
			assert.True(t, found == isWanted, "the last %d lines have %s: %v, want %v: %q", lines, word, found, isWanted, text)
		}
	}
	assert.ErrorIs(t, "Logs of -1 lines", assert.ErrorOf(d.Logs(t.Context(), spec.UID, driver.LogOptions{TailLines: new(int64(-1))})), driver.ErrInvalid)
}

func testLogsFollow(t *testing.T, e *Env) {
	d := optional[driver.LogReader](t, e.Driver)
	spec, s := e.Start(t, "logs-follow")
	earlier := e.print(t, s)
	e.waitForLog(t, spec.UID, driver.LogOptions{}, earlier)
	ctx, cancel := context.WithCancel(t.Context())
	log, err := d.Logs(t.Context(), spec.UID, driver.LogOptions{Follow: true})
	assert.NoError(t, err)
	cancelledLog, err := d.Logs(ctx, spec.UID, driver.LogOptions{Follow: true})
	assert.NoError(t, err)
	whole, cancelled := ReadAll(t, log), ReadAll(t, cancelledLog)
	whole.WaitForText(t, earlier)
	cancelled.WaitForText(t, earlier)
	later := e.print(t, s)
	whole.WaitForText(t, later)
	cancel()
	cancelled.WaitForEnd(t, nil)
	e.Stop(t, spec)
	whole.WaitForEnd(t, io.EOF)
}

// testLogsPrevious needs a driver that keeps the output of the previous run.
func testLogsPrevious(t *testing.T, e *Env) {
	d := optional[driver.LogReader](t, e.Driver)
	spec, s := e.Start(t, "logs-previous")
	first := e.print(t, s)
	e.waitForLog(t, spec.UID, driver.LogOptions{}, first)
	assert.ErrorIs(t, "Logs of the run before the first", assert.ErrorOf(d.Logs(t.Context(), spec.UID, driver.LogOptions{Previous: true})), driver.ErrRetry)

	s = e.Restart(t, spec, s)
	second := e.print(t, s)
	e.waitForLog(t, spec.UID, driver.LogOptions{}, second)
	checkBothLogs := func() {
		t.Helper()
		text := readLog(t, d, spec.UID, driver.LogOptions{})
		assert.True(t, !strings.Contains(text, first) && strings.Contains(text, second), "the log has %q, want %s and not %s", text, second, first)
		for _, o := range []driver.LogOptions{{Previous: true}, {Previous: true, Follow: true}, {Previous: true, TailLines: new(int64(1000))}} {
			text := readLog(t, d, spec.UID, o)
			assert.True(t, strings.Contains(text, first) && !strings.Contains(text, second), "the previous log has %q, want %s and not %s", text, first, second)
		}
	}
	checkBothLogs()
	e.Stop(t, spec)
	checkBothLogs()
}
