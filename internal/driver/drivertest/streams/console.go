// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

func openConsole(t *testing.T, d driver.Consoler, uid types.UID) (io.ReadWriteCloser, *Reading) {
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
	e.waitForText(t, first, earlier)
	_, second := openConsole(t, d, spec.UID)
	later := e.print(t, s)
	for _, r := range []*Reading{first, second} {
		e.waitForText(t, r, earlier)
		e.waitForText(t, r, later)
	}
	e.Stop(t, spec)
	e.waitForEnd(t, first, io.EOF)
	e.waitForEnd(t, second, io.EOF)
}

func testConsoleWriter(t *testing.T, e *Env) {
	d := optional[driver.Consoler](t, e.Driver)
	requireGuest(t, e.Guest.Type != nil, "Guest.Type")
	spec, _ := e.Start(t, "console-writer")
	other := optional[driver.Consoler](t, e.Open(t, e.Cluster))
	first, shown := openConsole(t, d, spec.UID)
	second, _ := openConsole(t, other, spec.UID)
	for range 2 {
		text := word()
		_, err := io.WriteString(first, e.Guest.Type(text))
		assert.NoError(t, err)
		e.waitForText(t, shown, text)
		_, err = io.WriteString(second, e.Guest.Type(word()))
		assert.ErrorIs(t, "Write beside another writer", err, driver.ErrConsoleTaken)
	}
	assert.NoError(t, first.Close())
	if _, err := io.WriteString(first, e.Guest.Type(word())); err == nil {
		t.Error("a console that was closed can be written to")
	}
	_, third := openConsole(t, d, spec.UID)
	text := word()
	_, err := io.WriteString(second, e.Guest.Type(text))
	assert.NoError(t, err)
	e.waitForText(t, third, text)
}

// testConsoleEnds checks that the caller can end a console at any time, and that the server
// goes on.
func testConsoleEnds(t *testing.T, e *Env) {
	d := optional[driver.Consoler](t, e.Driver)
	spec, s := e.Start(t, "console-ends")
	c, closed := openConsole(t, d, spec.UID)
	ctx, cancel := context.WithCancel(t.Context())
	c2, err := d.Console(ctx, spec.UID)
	assert.NoError(t, err)
	cancelled := ReadAll(t, c2)
	assert.NoError(t, c.Close())
	e.waitForEnd(t, closed, nil)
	cancel()
	e.waitForEnd(t, cancelled, nil)
	e.checkRuns(t, s)
}
