// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/mutants/active"
)

// suite is the tests of a package.
type suite struct {
	folder string // from the module's folder
	// whole are the arguments of a suite that is always run as a whole, which is not of unit
	// tests. They are empty for one of which only the tests that reach a mutant are run.
	whole  []string
	binary string
	tests  []test
}

// test is a test, or a suite that is run as a whole.
type test struct {
	name    string
	took    time.Duration
	reaches map[int]bool // numbers of mutants
}

// maxMemory bounds the memory of a binary, since a mutant may use it without end.
const maxMemory = "8000000" // KiB of addresses

// run runs the suite's binary and returns its output. Its error is of the tests, of an
// *exec.ExitError, or of something else that kept them from running.
func (c *config) run(ctx context.Context, s *suite, limit time.Duration, environment string, arguments ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+5*time.Second) // the binary's own timeout comes first, unless it hangs
	defer cancel()
	arguments = append([]string{"-c", "ulimit -v " + maxMemory + ` && exec "$0" "$@"`, s.binary, "-test.timeout", limit.String()}, arguments...)
	cmd := exec.CommandContext(ctx, "sh", arguments...)
	cmd.Dir = filepath.Join(c.root, s.folder)
	cmd.Env = append(os.Environ(), environment)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Minute
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// baseLimit bounds a test of the code without mutants.
const baseLimit = 5 * time.Minute

// measure runs each test of a suite without mutants, and records how long it takes and
// which mutants' code it runs.
func (c *config) measure(ctx context.Context, s *suite) error {
	if s.whole != nil {
		return c.measureTest(ctx, s, "", s.whole)
	}
	out, err := c.run(ctx, s, baseLimit, active.Variable+"=0", "-test.list", "^(Test|Fuzz|Example)")
	if err != nil {
		return fmt.Errorf("list the tests of %s: %w\n%s", s.folder, err, out)
	}
	for name := range strings.FieldsSeq(out) {
		if err := c.measureTest(ctx, s, name, []string{"-test.run", "^" + name + "$"}); err != nil {
			return err
		}
	}
	return nil
}

func (c *config) measureTest(ctx context.Context, s *suite, name string, arguments []string) error {
	file := filepath.Join(c.work, "reached")
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	began := time.Now()
	out, err := c.run(ctx, s, baseLimit, active.ReachedVariable+"="+file, arguments...)
	if err != nil {
		return fmt.Errorf("%s %s fails without a mutant: %w\n%s", s.folder, name, err, out)
	}
	reaches := map[int]bool{}
	content, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for field := range strings.FieldsSeq(string(content)) {
		n, err := strconv.Atoi(field)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		reaches[n] = true
	}
	s.tests = append(s.tests, test{name, time.Since(began), reaches})
	return nil
}

// minLimit is how long the fastest tests may take with a mutant, on a host that is busy.
const minLimit = 15 * time.Second

var failure = regexp.MustCompile(`--- FAIL: (\S+)|(panic|fatal error): .*`)

// try runs the tests of a suite that reach a mutant, with the mutant, and returns what
// killed it, or "".
func (c *config) try(ctx context.Context, s *suite, m Mutant) (killer string, err error) {
	var names []string
	limit := minLimit
	for _, t := range s.tests {
		if t.reaches[m.Number] {
			names = append(names, t.name)
			limit += 6 * t.took
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	arguments := s.whole
	if arguments == nil {
		arguments = []string{"-test.failfast", "-test.run", "^(" + strings.Join(names, "|") + ")$"}
	}
	out, err := c.run(ctx, s, limit, fmt.Sprintf("%s=%d", active.Variable, m.Number), arguments...)
	_, failed := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case !failed && !errors.Is(err, exec.ErrWaitDelay) && !errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("%s with mutant %s: %w", s.folder, m, err)
	}
	if match := failure.FindString(out); match != "" {
		return s.folder + ": " + match, nil
	}
	return s.folder + ": " + err.Error(), nil
}
