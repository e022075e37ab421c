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
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// screen shows what a console printed.
type screen struct {
	io.ReadWriteCloser

	mu   sync.Mutex
	text string
	err  error
}

func attach(t *testing.T, d *Driver, spec driver.ServerSpec) *screen {
	t.Helper()
	c, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	s := &screen{ReadWriteCloser: c}
	t.Cleanup(func() { _ = s.Close() })
	go s.copyFrom(c)
	return s
}

// copyFrom reads until the end.
func (s *screen) copyFrom(from io.Reader) {
	buffer := make([]byte, 1<<10)
	for {
		n, err := from.Read(buffer)
		s.mu.Lock()
		s.text, s.err = s.text+string(buffer[:n]), err
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (s *screen) read() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text, s.err
}

// shows waits until the text is there, and checks that it is there only once.
func (s *screen) shows(t *testing.T, what string) {
	t.Helper()
	assert.Eventually(t, "the console shows "+what, func(testing.TB) error {
		text, err := s.read()
		if strings.Count(text, what) != 1 {
			return fmt.Errorf("it shows %q, %w", text, err)
		}
		return nil
	})
}

// ends waits for the end of the output, and checks its cause.
func (s *screen) ends(t *testing.T, why error) {
	t.Helper()
	assert.Eventually(t, "the console ends", func(testing.TB) error {
		if _, err := s.read(); !errors.Is(err, why) {
			return fmt.Errorf("it ended with %w, not with %w", err, why)
		}
		return nil
	})
}

// TestConsole checks that all attached readers see the same output, including what came
// before, and that one of them can type.
func TestConsole(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	first, second := attach(t, d, spec), attach(t, e.open(t), spec)
	first.shows(t, "drover guest 1 A\r\n")
	second.shows(t, "drover guest 1 A\r\n")

	_, err := first.Write([]byte("z"))
	assert.NoError(t, err)
	first.shows(t, "A\r\nz")
	second.shows(t, "A\r\nz")
	assert.ErrorIs(t, "a write beside another console", assert.ErrorOf(second.Write([]byte("w"))), driver.ErrConsoleTaken)
	assert.NoError(t, first.Close())
	first.ends(t, os.ErrClosed)
	assert.ErrorIs(t, "a write to a console that was closed", assert.ErrorOf(first.Write([]byte("w"))), os.ErrClosed)
	_, err = second.Write([]byte("y"))
	assert.NoError(t, err)
	second.shows(t, "A\r\nzy")

	_, err = second.Write([]byte("x"))
	assert.NoError(t, err)
	off(t, d, spec)
	second.ends(t, io.EOF)
	_, err = d.Console(t.Context(), spec.UID)
	wantError(t, err, driver.ErrRetry, "does not run")
	gone(t, d, spec)
}

func TestConsoleOfNobody(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	_, err := d.Console(t.Context(), uuid.NewUUID())
	wantError(t, err, driver.ErrNotFound)
	_, err = d.Console(t.Context(), "../x")
	wantError(t, err, driver.ErrInvalid, "metadata.uid")
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	_, err = e.openAs(t, "cluster-2", e.dir).Console(t.Context(), spec.UID)
	wantError(t, err, driver.ErrNotFound)
	gone(t, d, spec)
}

// TestLogsStaySmall checks that what a guest prints while it has no supervisor is cut by
// the first one, and that later output is cut too. Readers of the console continue.
func TestLogsStaySmall(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	d.LogBound = instance.LogBound{Size: 4 << 10, Every: 10 * time.Millisecond}
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	c := attach(t, d, spec)
	log := d.InstanceOf(spec.UID).File(machine.SerialLogFile)
	prints := func(letter string, n int) {
		t.Helper()
		_, err := c.Write([]byte(strings.Repeat(letter, n)))
		assert.NoError(t, err)
	}
	prints("b", 1) // it listens continuously from then on
	prints("u", 10<<10)
	assert.Eventually(t, "the log grows", func(testing.TB) error {
		content, err := os.ReadFile(log)
		if n := bytes.Count(content, []byte("u")); n < 10<<10 && err == nil {
			err = fmt.Errorf("it has %d of them", n)
		}
		return err
	})

	keepWatching(t, d)
	assert.Eventually(t, "the log is cut", func(t testing.TB) error {
		if size := sizeOf(t, log); size != 0 {
			return fmt.Errorf("it has %d bytes", size)
		}
		return nil
	})
	if old, err := os.ReadFile(log + machine.OldLog); err != nil || len(old) != 4<<10 || len(bytes.Trim(old, "u")) != 0 {
		t.Errorf("put aside were %d bytes: %v", len(old), err)
	}
	prints("v", 20<<10)
	assert.Eventually(t, "the console shows the end", func(testing.TB) error {
		prints("!", 1)
		if text, err := c.read(); !strings.Contains(text, "!") {
			return fmt.Errorf("it shows %q, %w", text[max(0, len(text)-10):], err)
		}
		return nil
	})
	assert.Eventually(t, "the log stays small", func(t testing.TB) error {
		if size, old := sizeOf(t, log), sizeOf(t, log+machine.OldLog); size > 4<<10 || old > 8<<10 {
			return fmt.Errorf("it has %d bytes, and %d before", size, old)
		}
		return nil
	})
	gone(t, d, spec)
	leavesNothing(t, d)
}

func sizeOf(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	assert.NoError(t, err)
	return info.Size()
}
