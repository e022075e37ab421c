// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"
)

// Process is a program that a test runs and that ends with it.
type Process struct {
	process *childProcess
	output  lockedBuffer
}

// StartProcess starts a program with the test's environment and env on top.
func StartProcess(binary string, args, env []string) (*Process, error) {
	p := &Process{}
	p.process = startChild(binary, args, env, &p.output)
	if p.process.pid == 0 {
		<-p.process.done
		return nil, p.process.err
	}
	return p, nil
}

// Stop ends it as Ctrl-C does. It returns an error if the process did not end
// cleanly.
func (p *Process) Stop() error { return p.process.stopBySignal(syscall.SIGTERM) }

// Kill ends it as a crash does.
func (p *Process) Kill() error {
	err := p.process.stopBySignal(syscall.SIGKILL)
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// PID of the process.
func (p *Process) PID() int { return p.process.pid }

// HasEnded reports whether it has ended.
func (p *Process) HasEnded() bool { return p.process.hasEnded() }

// Output returns its output so far.
func (p *Process) Output() string { return p.output.String() }

// Wait waits for its end, without causing it, and returns how it ended.
func (p *Process) Wait(within time.Duration) error {
	select {
	case <-p.process.done:
		return p.process.err
	case <-time.After(within):
		return fmt.Errorf("has not ended within %s", within)
	}
}
