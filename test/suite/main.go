// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command suite runs Drover's tests. The Makefile calls it:
//
//	suite gate                     what must pass before a change lands (make test)
//	suite full [SHARD...]          everything, or some shards of it (make test-full)
//	suite flakes [flags] PACKAGE   one package again and again beside other work (make flakes)
//	suite shards                   the shards, and which of them are stale
//	suite check                    whether the tables of this command are right (make lint)
//
// Start with runGate in gate.go. packages.go says how each package runs, and table.go lists the
// shards of the full tier. A run marks the processes that it starts (mark.go), to distinguish its
// leftovers from other processes of the host.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

var commands = map[string]func(ctx context.Context, args []string) error{ // the comment of the package describes them
	"gate": runGate, "full": runFull, "flakes": runFlakes, "shards": printShards, "check": checkTables,
}

// errReported means that tests failed, and that the details are printed.
var errReported = errors.New("some tests failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	if ctx.Err() != nil {
		err = errors.New("interrupted; what the tests had started is ended")
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: suite gate | full [SHARD...] | flakes [-n N] [-load L] [-run PATTERN] PACKAGE | shards | check")
	}
	root, err := findRoot()
	if err != nil {
		return err
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	return commands[args[0]](ctx, args[1:])
}

// findRoot returns the repository's root, from any folder below it.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "standalone", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside a checkout of Drover")
		}
		dir = up
	}
}

// newFlags returns the flags of a command.
func newFlags(name string) *flag.FlagSet { return flag.NewFlagSet("suite "+name, flag.ExitOnError) }
