// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/test/framework/filelock"
)

// linkFlags omit data for debuggers, so that a test links in 2.4 s, not 3.8 s. Stack traces still have
// line numbers. Vet is off because make lint vets the packages.
var linkFlags = []string{"-ldflags=-s -w", "-vet=off"}

func goCommand(ctx context.Context, module string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = module
	return cmd
}

// output returns a program's standard output without surrounding space.
func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// cacheDir returns the folder, outside of the checkout, for files that tests build and download: see hack/cache.sh.
func cacheDir(ctx context.Context) (string, error) {
	return output(exec.CommandContext(ctx, "hack/cache.sh"))
}

// buildTest builds a package's tests into a run's folder, and returns the program's path and the cost
// of the build. It builds in the cache, where go links again only what has changed, even if another
// checkout built it.
func (m *mark) buildTest(ctx context.Context, p testPackage, isRaced bool) (program string, c cost, err error) {
	cache, err := cacheDir(ctx)
	if err != nil {
		return "", c, err
	}
	name := strings.ReplaceAll(p.path, "/", "-") + ".test"
	args := append([]string{"test", "-c"}, linkFlags...)
	if isRaced {
		name, args = "race-"+name, append(args, "-race")
	}
	kept := filepath.Join(cache, "tests", name)
	unlock, err := filelock.Lock(kept + ".lock")
	if err != nil {
		return "", c, err
	}
	defer unlock()
	build := goCommand(ctx, p.module(), append(args, "-o", kept, p.pattern())...)
	out, c, err := runMeasured(build)
	if err != nil {
		return "", c, fmt.Errorf("build the tests of %s: %w\n%s", p, err, out)
	}
	program = filepath.Join(m.dir, name)
	return program, c, copyFile(program, kept)
}

// copyFile links or copies a file. A link is enough, because go replaces the file and does not change it.
func copyFile(to, from string) error {
	if err := os.Link(from, to); err == nil || errors.Is(err, os.ErrExist) {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o755) // #nosec -- a program
}
