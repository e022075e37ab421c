// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func openConsole(t *testing.T, d driver.Consoler, uid types.UID) (console io.ReadWriteCloser, output *Reading) {
	t.Helper()
	c, err := d.Console(t.Context(), uid)
	assert.NoError(t, err)
	return c, ReadAll(t, c)
}

func testConsoleReaders(t *testing.T, e *Env) {
	d := optional[driver.Consoler](t, e.Driver)
	spec, s := e.Start(t, "console")
	earlier := e.print(t, s)
	_, first := openConsole(t, d, spec.UID)
	first.WaitForText(t, earlier)
	_, second := openConsole(t, d, spec.UID)
	later := e.print(t, s)
	for _, r := range []*Reading{first, second} {
		r.WaitForText(t, earlier)
		r.WaitForText(t, later)
	}
	e.Stop(t, spec)
	first.WaitForEnd(t, io.EOF)
	second.WaitForEnd(t, io.EOF)
}

func testConsoleWriter(t *testing.T, e *Env) {
	d := optional[driver.Consoler](t, e.Driver)
	Require(t, e.Guest.Type != nil, "Guest.Type")
	spec, _ := e.Start(t, "console-writer")
	other := optional[driver.Consoler](t, e.Open(t, e.Cluster))
	first, output := openConsole(t, d, spec.UID)
	second, _ := openConsole(t, other, spec.UID)
	for range 2 {
		text := newWord()
		assert.NoError(t, assert.ErrorOf(io.WriteString(first, e.Guest.Type(text))))
		output.WaitForText(t, text)
		assert.ErrorIs(t, "Write beside another writer", assert.ErrorOf(io.WriteString(second, e.Guest.Type(newWord()))), driver.ErrConsoleTaken)
	}
	assert.NoError(t, first.Close())
	_, err := io.WriteString(first, e.Guest.Type(newWord()))
	assert.True(t, err != nil, "Write to a closed console succeeds")
	_, third := openConsole(t, d, spec.UID)
	text := newWord()
	assert.NoError(t, assert.ErrorOf(io.WriteString(second, e.Guest.Type(text))))
	third.WaitForText(t, text)
}

// testConsoleEnds checks that the end of the context and Close end a reader, and that the
// server keeps running.
func testConsoleEnds(t *testing.T, e *Env) {
	d := optional[driver.Consoler](t, e.Driver)
	spec, s := e.Start(t, "console-ends")
	closed, closedOutput := openConsole(t, d, spec.UID)
	ctx, cancel := context.WithCancel(t.Context())
	cancelled, err := d.Console(ctx, spec.UID)
	assert.NoError(t, err)
	cancelledOutput := ReadAll(t, cancelled)
	assert.NoError(t, closed.Close())
	closedOutput.WaitForEnd(t, nil)
	cancel()
	cancelledOutput.WaitForEnd(t, nil)
	e.checkRuns(t, s)
}
