// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// TestInputs checks that as many commands have input in memory as may, that one without input does not
// count, and that a place is free again after each end.
func TestInputs(t *testing.T) {
	t.Parallel()
	m := newExecMemory()
	read := func(from io.Reader) (input []byte, err error) {
		input, release, err := m.readInput(from)
		if err == nil {
			release()
		}
		return input, err
	}
	ended := make(chan error)
	var typing []io.Closer
	for range failure.MaxInputs {
		from, to := io.Pipe()
		go func() { ended <- assert.ErrorOf(read(from)) }()
		for range 2 { // the second is read once there is a slot
			assert.NoError(t, assert.ErrorOf(io.WriteString(to, "x")))
		}
		typing = append(typing, to)
	}
	assert.ErrorIs(t, "one more input", assert.ErrorOf(read(strings.NewReader("x"))), failure.ErrTooManyInputs, "4 commands")
	assert.NoError(t, assert.ErrorOf(read(strings.NewReader(""))))
	assert.NoError(t, typing[0].Close())
	assert.NoError(t, <-ended)
	for range 2 {
		assert.ErrorIs(t, "a long input", assert.ErrorOf(read(bytes.NewReader(make([]byte, failure.MaxInput+1)))), failure.ErrInputTooLong)
		assert.ErrorIs(t, "a lost one", assert.ErrorOf(read(io.MultiReader(strings.NewReader("x"), iotest.ErrReader(io.ErrClosedPipe)))), io.ErrClosedPipe)
		input, err := read(strings.NewReader("whole"))
		assert.True(t, err == nil && string(input) == "whole", "it reads %q, %v", input, err)
	}
	for _, to := range typing[1:] {
		assert.NoError(t, to.Close())
		assert.NoError(t, <-ended)
	}
	assert.True(t, m.inputSlots.TryAcquire(failure.MaxInputs), "a command that has ended keeps its slot")
}
