// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"

	"cloudnative.tw/drover/test/assert"
)

// Process is a program that a test runs and that ends with it.
type Process struct {
	process *childProcess
	output  lockedBuffer
}

// StartProcess starts a program with the test's environment and env on top.
func StartProcess(binary string, args, env []string) (*Process, error) {
	return StartProcessAs(nil, binary, args, env)
}

// StartProcessAs starts a program as a user; nil means the user of the test.
func StartProcessAs(user *syscall.Credential, binary string, args, env []string) (*Process, error) {
	return startProcess(func(cmd *exec.Cmd) { cmd.SysProcAttr.Credential = user }, binary, args, env)
}

// StartProcessWithFiles starts a program that has these files from descriptor 3 on.
func StartProcessWithFiles(files []*os.File, binary string, args, env []string) (*Process, error) {
	return startProcess(func(cmd *exec.Cmd) { cmd.ExtraFiles = files }, binary, args, env)
}

func startProcess(configure func(*exec.Cmd), binary string, args, env []string) (*Process, error) {
	p := &Process{}
	p.process = startChild(configure, binary, args, env, &p.output)
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
func (p *Process) Kill() error { return p.process.killTree() }

// PID of the process.
func (p *Process) PID() int { return p.process.pid }

// HasEnded reports whether it has ended.
func (p *Process) HasEnded() bool { return p.process.hasEnded() }

// Output returns its output so far.
func (p *Process) Output() string { return p.output.String() }

// TakeOutput returns its output since the last call, and drops it.
func (p *Process) TakeOutput() string { return p.output.takeText() }

// Wait waits for its end, without causing it, and returns how it ended.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.process.done:
		return p.process.err
	case <-ctx.Done():
		return fmt.Errorf("has not ended: %w", context.Cause(ctx))
	}
}

// childProcess is a child that ends with this process.
type childProcess struct {
	pid  int
	done chan struct{}
	err  error
}

// startChild keeps a thread for the child, because the kernel treats the end of
// the thread that started a child as the parent's death.
func startChild(configure func(*exec.Cmd), binary string, args, env []string, output io.Writer) *childProcess {
	p := &childProcess{done: make(chan struct{})}
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		cmd := exec.CommandContext(context.Background(), binary, args...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		configure(cmd)
		p.err = cmd.Start()
		if p.err == nil {
			p.pid = cmd.Process.Pid
		}
		close(started)
		if p.err == nil {
			p.err = cmd.Wait()
		}
	}()
	<-started
	return p
}

func (p *childProcess) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *childProcess) exitError() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// stopBySignal signals the child and waits for it; it kills a child that does not end.
func (p *childProcess) stopBySignal(sig syscall.Signal) error {
	if p.hasEnded() {
		return fmt.Errorf("had ended already: %w", p.exitError())
	}
	if err := syscall.Kill(p.pid, sig); err != nil {
		return err
	}
	waitErr := assert.Poll(context.Background(), "the end of process "+strconv.Itoa(p.pid), func() error {
		return assert.ErrorUnless(p.hasEnded(), "it runs")
	})
	if waitErr == nil {
		return p.err
	}
	err := syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.done
	return errors.Join(fmt.Errorf("%w: it was killed", waitErr), err)
}

// lockedBuffer can be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) takeText() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buf.String()
	b.buf = bytes.Buffer{}
	return text
}

// killTree ends the child as a crash does.
func (p *childProcess) killTree() error {
	err := p.stopBySignal(syscall.SIGKILL)
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}
