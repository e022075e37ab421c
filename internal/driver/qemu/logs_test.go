// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// openLog opens the log of a server.
func openLog(t *testing.T, d *Driver, spec driver.ServerSpec, o driver.LogOptions) io.ReadCloser {
	t.Helper()
	log, err := d.Logs(t.Context(), spec.UID, o)
	assert.NoError(t, err)
	return log
}

// TestLogs checks that the log has the output of all runs, and that one which is followed continues when it is cut
// and ends with the machine. The previous log has the part that was cut off.
func TestLogs(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A\r\n")
	wantError(t, assert.ErrorOf(d.Logs(t.Context(), spec.UID, driver.LogOptions{Previous: true})), driver.ErrRetry, "nothing was cut off")
	restart(t, d, spec, "drover guest 2 A\r\n")
	log := streams.ReadAll(t, openLog(t, d, spec, driver.LogOptions{Follow: true}))
	log.WaitForText(t, "drover guest 1 A\r\n")
	log.WaitForText(t, "drover guest 2 A\r\n")
	all, _ := log.Now()

	cutLog(t, d.Host.InstanceOf(spec.UID).Machine.File(machine.SerialLogFile), 10)
	e.printWord(t, listed(t, d, spec), "zy")
	log.WaitForText(t, "2 A\r\nzy")
	for o, want := range map[driver.LogOptions]string{{}: "zy", {Previous: true, Follow: true}: all[len(all)-10:]} {
		got, err := io.ReadAll(openLog(t, d, spec, o))
		assert.True(t, err == nil && string(got) == want, "with %+v the log is %q, %v, want %q", o, got, err, want)
	}
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	log.WaitForEnd(t, io.EOF)
}

// smallLogs bounds logs so that guests, which print slowly, fill them.
const smallLogs = 512

// cutLog cuts a log, as its supervisor does.
func cutLog(t *testing.T, path string, most int64) {
	t.Helper()
	log, err := os.OpenFile(path, os.O_RDWR, 0)
	aside, asideErr := os.OpenFile(path+machine.OldLog, os.O_RDWR, 0)
	assert.NoError(t, errors.Join(err, asideErr))
	assert.NoError(t, errors.Join(machine.CutLog(log, aside, most), log.Close(), aside.Close()))
}

// TestLogsStaySmall checks that what a guest prints is cut again and again, though no controller watches. Readers
// of the console continue.
func TestLogsStaySmall(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	d.Host.LogBound = smallLogs
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	c, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	shown := streams.ReadAll(t, c)
	log := d.Host.InstanceOf(spec.UID).Machine.File(machine.SerialLogFile)
	prints := func(letter string, n int64) {
		t.Helper()
		assert.NoError(t, assert.ErrorOf(c.Write(bytes.Repeat([]byte(letter), int(n)))))
	}
	prints("b", 1) // it listens continuously from then on
	prints("u", 2*smallLogs)
	assert.Eventually(t, "the log is cut", func(testing.TB) error {
		old, err := os.ReadFile(log + machine.OldLog)
		if n := bytes.Count(old, []byte("u")); err == nil && n == 0 {
			err = fmt.Errorf("put aside were %d bytes", len(old))
		}
		return err
	})
	prints("v", 5*smallLogs)
	assert.Eventually(t, "the console shows the end", func(testing.TB) error {
		prints("!", 1)
		if text, err := shown.Now(); !strings.Contains(text, "!") {
			return fmt.Errorf("it shows %q, %w", text[max(0, len(text)-10):], err)
		}
		return nil
	})
	assert.Eventually(t, "the log stays small", func(t testing.TB) error {
		size, old := sizeOf(t, log), sizeOf(t, log+machine.OldLog)
		return assert.ErrorUnless(size <= smallLogs && old <= 2*smallLogs, "it has %d bytes, and %d before", size, old)
	})
}

func sizeOf(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	assert.NoError(t, err)
	return info.Size()
}
