// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
)

// runFlakes repeats the tests of one package while loops keep CPUs busy, and prints the first failure,
// or how close the longest waits came to their limit. It builds once.
func runFlakes(ctx context.Context, args []string) error {
	flags := newFlags("flakes")
	times := flags.Int("n", 20, "how often the tests run")
	load := flags.Int("load", 1, "busy loops for each CPU")
	pattern := flags.String("run", "", "pattern of the tests, as for go test -run")
	isFull := flags.Bool("full", false, "run those of the full tier, too")
	_ = flags.Parse(args) // it exits
	if flags.NArg() != 1 || *times < 1 || *load < 0 {
		return errors.New("usage: suite flakes [-n N] [-load L] [-run PATTERN] [-full] PACKAGE; N is at least 1, L at least 0")
	}
	p, err := findPackage(flags.Arg(0))
	if err != nil {
		return err
	}
	m, err := newMark()
	if err != nil {
		return err
	}
	program, _, err := m.buildTest(ctx, p, p.kind == raced)
	if err != nil {
		return errors.Join(err, m.remove())
	}
	stop := burn(ctx, *load*runtime.NumCPU())
	defer stop()
	waits := filepath.Join(m.dir, "waits")
	var all []part
	for n := range *times {
		one := m.run(ctx, testRun{of: p, program: program, pattern: *pattern, isFull: *isFull, waitsLog: waits})
		one.name = fmt.Sprintf("%s, run %d of %d", p, n+1, *times)
		if all = append(all, one); one.failed || ctx.Err() != nil {
			break
		}
	}
	printWaits(waits, 10)
	return m.finish(ctx, all)
}

// burn keeps CPUs busy until stop is called.
func burn(ctx context.Context, loops int) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	for range loops {
		running.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_ = n * n
			}
		})
	}
	return func() { cancel(); running.Wait() }
}
