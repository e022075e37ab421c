// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// signalsEnv makes TestSignalled the process that gets signals.
const signalsEnv = "DROVER_TEST_SIGNALS"

// TestSignalled is the process: it says what happens, and waits for the end of its standard input.
func TestSignalled(t *testing.T) {
	if os.Getenv(signalsEnv) == "" {
		t.Skip("TestStopContext runs it")
	}
	ctx := StopContext(t.Context())
	SurviveSIGPIPE()
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("stopping")
	_, _ = io.ReadAll(os.Stdin)
	os.Exit(0)
}

// TestStopAndWait checks that a stop goes on however often a service manager asks for it, and that a
// person's Ctrl-C ends it.
func TestStopAndWait(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]os.Signal{"SIGTERM": syscall.SIGTERM, "Ctrl-C": os.Interrupt} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ended, stops := make(chan os.Signal), make(chan struct{}), 0
			go func() {
				stopAndWait(got, func() { stops++ })
				close(ended)
			}()
			for n, s := range []os.Signal{first, syscall.SIGTERM, syscall.SIGTERM, os.Interrupt} {
				select {
				case got <- s: // the one before was taken, and waited on
				case <-ended:
					t.Fatalf("it ended after %d signals", n)
				}
			}
			<-ended
			assert.True(t, stops == 1, "it stopped %d times", stops)
		})
	}
}

// signalled is a process that runs TestSignalled, and has printed that it is ready.
type signalled struct {
	*exec.Cmd

	in  io.Closer
	out *os.File
}

func startSignalled(t *testing.T) signalled {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSignalled$")
	cmd.Env = append(os.Environ(), signalsEnv+"=1")
	in, err := cmd.StdinPipe()
	assert.NoError(t, err)
	out, written, err := os.Pipe()
	assert.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	cmd.Stdout = written
	assert.NoError(t, errors.Join(cmd.Start(), written.Close()))
	waitForLine(t, out, "ready")
	return signalled{cmd, in, out}
}

// TestStopContext checks that a process stops at the first signal, and ends at a Ctrl-C after that.
func TestStopContext(t *testing.T) {
	t.Parallel()
	process := startSignalled(t)
	assert.NoError(t, process.Process.Signal(syscall.SIGTERM))
	waitForLine(t, process.out, "stopping")
	assert.NoError(t, process.Process.Signal(os.Interrupt))
	_ = process.Wait()
	assert.True(t, process.ProcessState.ExitCode() == 130, "the process ended with %s, want code 130", process.ProcessState)
}

// TestSurviveSIGPIPE checks that a process runs on whose output nobody reads any more, until it has done what it
// does at its end.
func TestSurviveSIGPIPE(t *testing.T) {
	t.Parallel()
	process := startSignalled(t)
	assert.NoError(t, process.out.Close())
	assert.NoError(t, process.Process.Signal(syscall.SIGTERM)) // at which it prints a line
	assert.NoError(t, process.in.Close())
	assert.NoError(t, process.Wait()) // it exits with 0
}

func waitForLine(t *testing.T, out io.Reader, want string) {
	t.Helper()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == want {
			return
		}
	}
	t.Fatalf("the process did not print %q", want)
}
