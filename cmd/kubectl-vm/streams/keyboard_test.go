// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// TestLeaveKey checks that the key leaves a terminal after what was typed before it, without an end of the input, and is
// an ordinary byte of a pipe.
func TestLeaveKey(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		isTerminal bool
		want       string
		until      time.Duration
	}{
		"terminal": {isTerminal: true, want: "before", until: time.Hour}, // when the connection ends
		"pipe":     {isTerminal: false, want: "before\x1dafter"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				k := ReadKeyboard(strings.NewReader("before\x1dafter"), test.isTerminal)
				got, err := io.ReadAll(k.NewReader(ctx))
				assert.True(t, err == nil && string(got) == test.want, "passed on was %q, %v, want %q", got, err, test.want)
				assert.Equal(t, "the input ends after", time.Since(began), test.until)
				select {
				case <-k.Detached():
					assert.True(t, test.isTerminal, "a pipe has detached")
				default:
					assert.True(t, !test.isTerminal, "it has not detached")
				}
			})
		})
	}
}

// TestKeysOfTwoConnections checks that what the first connection did not read goes to the
// second, and that the first ends with its context.
func TestKeysOfTwoConnections(t *testing.T) {
	t.Parallel()
	in, typist := io.Pipe()
	k := ReadKeyboard(in, true)
	ctx, end := context.WithCancel(t.Context())
	end()
	if n, err := k.NewReader(ctx).Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("a connection that has ended reads %d, %v", n, err)
	}
	_, err := typist.Write([]byte("xy"))
	assert.NoError(t, err)
	letter := make([]byte, 1)
	for _, want := range []string{"x", "y"} {
		if _, err := k.NewReader(t.Context()).Read(letter); err != nil || string(letter) != want {
			t.Errorf("read %q, %v, want %q", letter, err, want)
		}
	}
}

// TestKeyboardOfNextConnection checks that the reader of a connection that has ended takes
// nothing from the next one's, also while it is ending.
func TestKeyboardOfNextConnection(t *testing.T) {
	t.Parallel()
	in, typed := io.Pipe()
	k := ReadKeyboard(in, true)
	for n := range 200 {
		ctx, cancel := context.WithCancel(t.Context())
		former := k.NewReader(ctx)
		go func() { _, _ = former.Read(make([]byte, 8)) }()
		cancel()
		k.DropInput()
		key := []byte{'a' + byte(n%26)}
		go func() { _, _ = typed.Write(key) }()
		got := make([]byte, 8)
		size, err := k.NewReader(t.Context()).Read(got)
		assert.Require(t, err == nil && string(got[:size]) == string(key), "key %d: %q, %v, want %q", n, got[:size], err, key)
	}
	_ = typed.Close()
}
