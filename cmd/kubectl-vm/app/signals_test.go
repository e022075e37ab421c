// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

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

// TestSignalled is the process: it says when it stops, and ends with its standard input.
func TestSignalled(t *testing.T) {
	if os.Getenv(signalsEnv) == "" {
		t.Skip("TestStopContext runs it")
	}
	ctx := StopContext(t.Context())
	fmt.Println("ready")
	<-ctx.Done()
	fmt.Println("stopping")
	_, _ = io.ReadAll(os.Stdin)
	os.Exit(0)
}

// TestStopContext checks that a second SIGTERM does not end the process, and that a Ctrl-C then does.
func TestStopContext(t *testing.T) {
	t.Parallel()
	for name, isForced := range map[string]bool{"SIGTERM twice": false, "SIGTERM and Ctrl-C": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSignalled$")
			cmd.Env = append(os.Environ(), signalsEnv+"=1")
			in, err := cmd.StdinPipe()
			assert.NoError(t, err)
			out, err := cmd.StdoutPipe()
			assert.NoError(t, err)
			assert.NoError(t, cmd.Start())
			lines := bufio.NewScanner(out)
			for _, want := range []string{"ready", "stopping"} {
				if !lines.Scan() || lines.Text() != want {
					t.Fatalf("the process printed %q, want %q", lines.Text(), want)
				}
				assert.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			}
			if isForced {
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					_, _ = io.Copy(io.Discard, out)
				}()
				assert.Eventually(t, "a Ctrl-C ends the process", func(testing.TB) error {
					_ = cmd.Process.Signal(os.Interrupt) // the first may come before the process is ready for it
					select {
					case <-ended:
						return nil
					default:
						return errors.New("it runs")
					}
				})
			} else {
				assert.NoError(t, in.Close())
			}
			_ = cmd.Wait()
			status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
			if wasInterrupted := status.Signaled() && status.Signal() == syscall.SIGINT; wasInterrupted != isForced || !isForced && status.ExitStatus() != 0 {
				t.Errorf("the process ended with %s, want that a Ctrl-C ended it: %v", cmd.ProcessState, isForced)
			}
		})
	}
}
