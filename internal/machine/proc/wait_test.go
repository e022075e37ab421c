// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"os"
	"os/exec"
	"runtime/pprof"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestWait compares the result of a wait with the end that the program has chosen, and counts the
// threads that a hundred waits take.
func TestWait(t *testing.T) {
	threads := func() int { return pprof.Lookup("threadcreate").Count() }
	const programs = 100
	before := threads()
	ended := make(chan error, programs)
	var inputs []*os.File
	for range programs {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "read line; exit 3")
		in, err := cmd.StdinPipe()
		assert.NoError(t, err)
		assert.NoError(t, cmd.Start())
		inputs = append(inputs, in.(*os.File))
		go func() { ended <- Wait(cmd) }()
	}
	more := threads() - before
	assert.True(t, more <= programs/2, "%d programs that run have %d more threads wait", programs, more)
	for _, in := range inputs {
		_ = in.Close()
	}
	for range programs {
		var exit *exec.ExitError
		err := <-ended
		assert.True(t, errors.As(err, &exit) && exit.ExitCode() == 3, "Wait returns %v, want exit code 3", err)
	}
}
