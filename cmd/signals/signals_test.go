// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signals

import (
	"bufio"
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

// TestSignalled is the process: it says what happens, and ends with its standard input.
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

// TestStopContext checks that a stop goes on in order however often a service manager asks for it, and
// that a person's Ctrl-C ends it.
func TestStopContext(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		signals []os.Signal
		want    int
	}{
		"SIGTERM twice":      {[]os.Signal{syscall.SIGTERM, syscall.SIGTERM}, 0},
		"Ctrl-C and SIGTERM": {[]os.Signal{os.Interrupt, syscall.SIGTERM}, 0},
		"SIGTERM and Ctrl-C": {[]os.Signal{syscall.SIGTERM, os.Interrupt}, 130},
		"SIGTERM, then two":  {[]os.Signal{syscall.SIGTERM, syscall.SIGTERM, os.Interrupt}, 130},
	} {
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
			waitForLine(t, lines, "ready")
			for n, s := range tc.signals {
				assert.NoError(t, cmd.Process.Signal(s))
				if n == 0 {
					waitForLine(t, lines, "stopping")
				}
			}
			if tc.want == 0 {
				assert.NoError(t, in.Close())
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tc.want {
				t.Errorf("the process ended with %s, want code %d", cmd.ProcessState, tc.want)
			}
		})
	}
}

func waitForLine(t *testing.T, lines *bufio.Scanner, want string) {
	t.Helper()
	for lines.Scan() {
		if lines.Text() == want {
			return
		}
	}
	t.Fatalf("the process did not print %q", want)
}
