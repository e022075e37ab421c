// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// testTimeout ends a package whose tests hang. It is longer than the limit of waits in tests, 10 minutes.
const testTimeout = 20 * time.Minute

// cost is the cost of a part of a run. Its CPU seconds were used by processes that the part has
// waited for, not of an engine that was started before.
type cost struct {
	wall, cpu time.Duration
}

func (c *cost) add(more cost) {
	c.wall += more.wall
	c.cpu += more.cpu
}

// part is a row of the table that a run prints at its end.
type part struct {
	name string
	cost
	failed bool
	// answered are packages whose results are from go's cache.
	answered []string
}

// runMeasured runs a program in a new process group, which is killed when ctx ends. The program
// is also killed when this process ends.
func runMeasured(cmd *exec.Cmd) (output []byte, c cost, err error) {
	runtime.LockOSThread() // for Pdeathsig the parent of a process is the thread that started it
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = endTimeout // processes that have left the group may keep the output open
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	err = cmd.Run()
	c.wall = time.Since(begin)
	if s := cmd.ProcessState; s != nil {
		c.cpu = s.UserTime() + s.SystemTime()
	}
	return out.Bytes(), c, err
}

// testRun has the options of a program of tests.
type testRun struct {
	of       testPackage
	program  string
	pattern  string // of tests; all if it is empty
	isFull   bool
	flags    []string
	waitsLog string // see assert.WaitsEnv
}

// run runs a program of tests. If it fails, run prints its output.
func (m *mark) run(ctx context.Context, r testRun) part {
	args := []string{"-test.timeout=" + testTimeout.String(), fmt.Sprintf("-test.parallel=%d", r.of.parallel)}
	if r.pattern != "" {
		args = append(args, "-test.run="+r.pattern)
	}
	if r.isFull {
		args = append(args, "-test.v")
	}
	cmd := exec.CommandContext(ctx, r.program, append(args, r.flags...)...)
	cmd.Dir = r.of.path
	cmd.Env = append(m.environ(r.isFull), assert.WaitsEnv+"="+r.waitsLog)
	out, c, err := runMeasured(cmd)
	p := part{name: r.of.path, cost: c, failed: err != nil}
	if err != nil {
		fmt.Printf("%s\nFAIL %s: %v\n", out, r.of, err)
		keepFailure(r.of.path, out)
		return p
	}
	if r.isFull {
		printSummary(os.Stdout, out)
	}
	fmt.Printf("ok   %-34s %6.1f s, %6.1f s of CPU\n", r.of, c.wall.Seconds(), c.cpu.Seconds())
	return p
}

// printSummary prints the time of each test, and the summaries that tests print.
func printSummary(w io.Writer, output []byte) {
	for line := range strings.Lines(string(output)) {
		if !strings.HasPrefix(line, " ") && !strings.HasPrefix(line, "=== ") && line != "PASS\n" {
			_, _ = io.WriteString(w, line)
		}
	}
}

// finish ends the processes that a run has left, prints its table and the failures, and returns errReported
// if there are any failures.
func (m *mark) finish(ctx context.Context, parts []part) error {
	left := m.sweep(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	fmt.Println(" seconds   of CPU  part")
	var all cost
	failed := len(left) > 0
	for _, p := range parts {
		fmt.Printf("%8.1f %8.1f  %s\n", p.wall.Seconds(), p.cpu.Seconds(), p.name)
		all.add(p.cost)
		failed = failed || p.failed
	}
	fmt.Printf("         %8.1f  all\n", all.cpu.Seconds())
	for _, p := range parts {
		if len(p.answered) > 0 {
			fmt.Printf("%s: %d packages were answered from go's cache: %s\n", p.name, len(p.answered), strings.Join(p.answered, " "))
		}
	}
	for _, line := range failures.lines {
		fmt.Fprintln(os.Stderr, line)
	}
	for _, what := range left {
		fmt.Fprintln(os.Stderr, "left by the tests, and now removed:", what)
	}
	if failed {
		return errReported
	}
	return nil
}

// printWaits prints the longest waits of a run, in percent of the limit.
func printWaits(path string, most int) {
	content, err := os.ReadFile(filepath.Clean(path))
	if err != nil {
		return
	}
	lines := strings.Split(strings.TrimSpace(string(content)), "\n")
	slices.Sort(lines) // they begin with a number of fixed width
	for _, line := range slices.Backward(lines[max(0, len(lines)-most):]) {
		fmt.Println("wait, as a part of its limit:", strings.ReplaceAll(line, "\t", " "))
	}
}
