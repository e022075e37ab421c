// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// optional returns the driver as an optional interface. It skips the case for other drivers.
func optional[T any](t *testing.T, d driver.Driver) T {
	t.Helper()
	implementation, ok := driver.As[T](d)
	if !ok {
		t.Skipf("the driver does not implement %T", (*T)(nil))
	}
	return implementation
}

// newWord returns a random word. It has only letters that are not commands of a test's guest.
func newWord() string {
	const letters = "uvwyz"
	text := make([]byte, 16)
	for i := range text {
		text[i] = letters[rand.IntN(len(letters))] //nolint:gosec // not a secret
	}
	return string(text)
}

// print makes the guest print a new word.
func (e *Env) print(t *testing.T, s driver.Server) string {
	t.Helper()
	Require(t, e.Guest.Print != nil, "Guest.Print")
	text := newWord()
	e.Guest.Print(t, e.Driver, s, text)
	return text
}

// Reading has the content of a stream so far, and the error that ended the stream.
type Reading struct {
	mu   sync.Mutex
	text string
	err  error
}

// ReadAll starts to read a stream in the background. It closes the stream at the end of the case.
func ReadAll(t *testing.T, stream io.ReadCloser) *Reading {
	t.Helper()
	r := &Reading{}
	t.Cleanup(func() { _ = stream.Close() })
	go func() {
		buffer := make([]byte, 1<<10)
		for {
			n, err := stream.Read(buffer)
			r.add(string(buffer[:n]), err)
			if err != nil {
				return
			}
		}
	}()
	return r
}

func (r *Reading) add(text string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text, r.err = r.text+text, err
}

// Now returns the content so far and the error that ended the stream, nil if it goes on.
func (r *Reading) Now() (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text, r.err
}

// WaitForText waits until the stream has a text, and checks that it has the text only once.
func (r *Reading) WaitForText(t testing.TB, text string) {
	t.Helper()
	assert.Eventually(t, "the stream to have "+text, func(testing.TB) error {
		all, err := r.Now()
		switch strings.Count(all, text) {
		case 0:
			return fmt.Errorf("the stream, which ended with %v, has %q", err, all) //nolint:errorlint // err may be nil
		case 1:
			return nil
		}
		t.Fatalf("the stream has %q more than once: %q", text, all)
		return nil
	})
}

// WaitForEnd waits until the stream has ended, and checks that the error is of a kind. If kind is
// nil, any error but io.EOF is right.
func (r *Reading) WaitForEnd(t testing.TB, kind error) {
	t.Helper()
	assert.Eventually(t, "the stream to end", func(testing.TB) error {
		switch _, err := r.Now(); {
		case err == nil:
			return errors.New("the stream goes on")
		case kind == nil && !errors.Is(err, io.EOF), kind != nil && errors.Is(err, kind):
			return nil
		default:
			t.Fatalf("the stream ended with %v, want %v", err, kind)
		}
		return nil
	})
}

// Require fails the case if the harness lacks a capability that the case needs.
func Require(t *testing.T, isSupported bool, capability string) {
	t.Helper()
	assert.Require(t, isSupported, "the harness lacks %s: set it, or add the name of this case to Skips with the reason", capability)
}

// checkRuns checks that a server is still in the same run.
func (e *Env) checkRuns(t *testing.T, s driver.Server) {
	t.Helper()
	var now []driver.Server
	assert.Eventually(t, "List", func(testing.TB) (err error) { // may fail on a busy host
		now, err = e.Driver.List(t.Context(), s.UID)
		return err
	})
	assert.True(t, len(now) == 1 && now[0].Run == s.Run && now[0].State == driver.StateRunning, "List shows %+v, want one server that runs, in the run %s", now, s.Run)
}
