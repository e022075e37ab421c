// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command mutants measures whether tests notice small changes of the code that decides:
// mutation testing. make mutants runs it; docs/faults.md has the figures.
//
// It rewrites the files into copies in which each change, a mutant, is a choice at run time
// (package active), so each test binary is built once for all mutants, by go test
// -overlay. A run without a mutant records which tests run which mutant's code. Each mutant
// is then tried with these tests: those of its own package first, and only those that
// survive with the tests of the other packages, and with schedules.
//
// A survivor must be in the list survivors.txt, with the reason why no test can or need
// kill it.
//
// Start with explore below. rewrite.go finds the places, operators.go changes them.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"time"
)

// decidingFiles are the files that decide what is done about VirtualMachines, and by which
// process.
var decidingFiles = []string{
	"internal/controller/policy/binding.go",
	"internal/controller/policy/crash.go",
	"internal/controller/policy/decide.go",
	"internal/controller/policy/deletion.go",
	"internal/controller/policy/power.go",
	"internal/controller/policy/restart.go",
	"internal/controller/policy/retry.go",
	"internal/controller/policy/update.go",
	"internal/controller/report.go",
	"internal/inventory/inventory.go",
	"internal/inventory/sweep.go",
	"internal/leader/guard.go",
	"internal/leader/lock.go",
	"internal/leader/observed.go",
	"internal/leader/wait.go",
}

// unitTests are the packages whose tests run without engines and run that code, the fastest
// first.
var unitTests = []string{
	"internal/controller/policy",
	"internal/leader",
	"internal/inventory",
	"internal/controller/decisions",
	"internal/controller",
}

// config is what to do.
type config struct {
	root    string
	work    string // folder for what is built
	files   []string
	suites  []suite
	known   string // file with the list of survivors
	only    *regexp.Regexp
	workers int
	list    bool // every mutant, with what killed it
	// progress, if not nil, gets a line now and then.
	progress io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	only := flag.String("only", "", "try only mutants whose line of the list matches this regular expression")
	workers := flag.Int("workers", 2*runtime.NumCPU(), "how many mutants to try at a time; tests that a mutant makes hang only wait")
	schedules := flag.Duration("schedules", 20*time.Second, "how long to look for a survivor by schedules; 0: not at all")
	list := flag.Bool("list", false, "print every mutant, with what killed it")
	work := flag.String("work", "bin/_mutants", "folder for what is built")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	c := config{files: decidingFiles, known: "test/mutants/survivors.txt", only: pattern, workers: *workers, list: *list, progress: os.Stderr}
	for _, folder := range unitTests {
		c.suites = append(c.suites, suite{folder: folder})
	}
	if *schedules > 0 {
		c.suites = append(c.suites, suite{folder: "test/schedules", whole: []string{
			"-test.run", "^TestSchedules$", "-workers", "1", "-until-violation", "-duration", schedules.String(),
		}})
	}
	if c.root, err = os.Getwd(); err != nil {
		return err
	}
	if c.work, err = filepath.Abs(*work); err != nil {
		return err
	}
	return c.explore(ctx, os.Stdout)
}

// explore tries all mutants, prints a table and the survivors, and returns an error unless
// these are those of the list.
func (c *config) explore(ctx context.Context, out io.Writer) error {
	known, err := readKnown(c.known)
	if err != nil {
		return err
	}
	mutants, err := c.prepare(ctx)
	if err != nil {
		return err
	}
	exists := map[string]bool{}
	for _, m := range mutants {
		exists[m.String()] = true
	}
	mutants = slices.DeleteFunc(mutants, func(m Mutant) bool { return !c.only.MatchString(m.String()) })
	outcomes, err := c.tryAll(ctx, mutants)
	if err != nil {
		return err
	}
	c.print(out, outcomes, known)
	problems := compareKnown(known, exists, outcomes)
	slices.Sort(problems)
	for _, problem := range problems {
		_, _ = fmt.Fprintln(out, problem)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%s is not the list of the survivors: %d differences", c.known, len(problems))
	}
	return nil
}

// prepare builds the suites with all mutants, and measures them without one.
func (c *config) prepare(ctx context.Context) ([]Mutant, error) {
	if err := os.MkdirAll(c.work, 0o750); err != nil {
		return nil, err
	}
	mutants, overlay, err := c.writeOverlay(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.build(ctx, overlay); err != nil {
		return nil, err
	}
	for n := range c.suites {
		c.log("measuring %s", c.suites[n].folder)
		if err := c.measure(ctx, &c.suites[n]); err != nil {
			return nil, err
		}
	}
	return mutants, nil
}
