// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"io"
	"os"
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestConsoleAcrossRuns checks that a console ends with the run whose guest it writes to, even
// if the next run has begun before it looks.
func TestConsoleAcrossRuns(t *testing.T) {
	t.Parallel()
	m := Machine{Path: t.TempDir(), Staging: folder(t.TempDir())}
	lock, err := m.ClaimRun() // is held all the time, as by two runs in a row
	assert.NoError(t, err)
	defer func() { _ = lock.Close() }()
	assert.NoError(t, os.WriteFile(m.File(SerialLogFile), []byte("hello"), 0o600))
	listener := framework.Listen(t, "unix", m.File(SerialSocket))

	c, err := m.OpenConsole(t.Context())
	assert.NoError(t, err)
	defer func() { _ = c.Close() }()
	assert.NoError(t, assert.ErrorOf(c.Write([]byte("a"))))
	guest, err := listener.Accept()
	assert.NoError(t, err)
	assert.NoError(t, guest.Close())

	if shown, err := io.ReadAll(c); err != nil || string(shown) != "hello" {
		t.Errorf("the console showed %q, %v; want hello and its end", shown, err)
	}
	if _, err := c.Write([]byte("b")); err != nil {
		t.Errorf("typing after the end: %v", err)
	}
}
