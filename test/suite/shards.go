// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"time"
)

// step is a package, or some tests of it.
type step struct {
	of      string
	pattern string // of tests, as for go test -run
	skip    string // those that another shard runs, as for go test -skip
	isRaced bool
}

// shard is a part of the full tier that takes at most shardLimit.
type shard struct {
	name  string
	steps []step
	// short is the step that the gate runs when it is the shard's turn, within shortLimit.
	short step
	// paths are the files and folders that the shard depends on.
	paths []string
	// prepare is a command that installs what the shard needs.
	prepare []string
}

const (
	shardLimit = 15 * time.Minute
	shortLimit = 3 * time.Minute
)

// checkShards fails if a step names no package, paths name no file, or no shard runs a package that
// has tests of the full tier.
func checkShards(ctx context.Context) (err error) {
	files, err := gitOutput(ctx, "grep", "--files-with-matches", `"cloudnative.tw/drover/test/tier"`, "--", "*_test.go")
	if err != nil {
		return err
	}
	missing := map[string]bool{}
	for file := range strings.FieldsSeq(files) {
		missing[path.Dir(file)] = true
	}
	for _, s := range shards {
		for _, one := range s.steps {
			delete(missing, one.of)
		}
		for _, one := range append(slices.Clone(s.steps), s.short) {
			if _, e := findPackage(one.of); e != nil && one.of != "" {
				err = errors.Join(err, fmt.Errorf("shard %s: %w", s.name, e))
			}
		}
		for _, file := range s.paths {
			if _, e := os.Stat(file); e != nil {
				err = errors.Join(err, fmt.Errorf("shard %s: %w", s.name, e))
			}
		}
	}
	for of := range missing {
		err = errors.Join(err, fmt.Errorf("no shard of test/suite/table.go runs %s, which has tests of the full tier", of))
	}
	return err
}

func findShard(name string) (shard, error) {
	var names []string
	for _, s := range shards {
		if s.name == name {
			return s, nil
		}
		names = append(names, s.name)
	}
	return shard{}, fmt.Errorf("there is no shard %q: there are %s", name, strings.Join(names, ", "))
}

// runFull runs shards of the full tier, all if none is named, and records those that passed.
func runFull(ctx context.Context, args []string) error {
	var selected []shard
	for _, name := range args {
		s, err := findShard(name)
		if err != nil {
			return err
		}
		selected = append(selected, s)
	}
	if len(args) == 0 {
		selected = shards
	}
	if os.Getuid() != 0 {
		return errors.New("the full tier needs root, for namespaces, control groups and users of machines: sudo make test-full")
	}
	if err := checkHost(ctx); err != nil {
		return err
	}
	failed := false
	for _, s := range selected {
		if err := runShard(ctx, s); ctx.Err() != nil {
			return err
		} else if err != nil {
			fmt.Printf("shard %s: %v\n", s.name, err)
			failed = true
		}
	}
	if failed {
		return errReported
	}
	return nil
}

// runShard runs a shard, and records it if it passed and its files did not change during the run.
func runShard(ctx context.Context, s shard) error {
	before, err := hashPaths(ctx, s.paths)
	if err != nil {
		return err
	}
	fmt.Printf("== shard %s\n", s.name)
	m, err := newMark()
	if err != nil {
		return err
	}
	parts := m.runSteps(ctx, s.prepare, s.steps)
	var took time.Duration
	for _, p := range parts {
		took += p.wall
	}
	if err := m.finish(ctx, parts); err != nil {
		return err
	}
	if took > shardLimit {
		fmt.Printf("shard %s took %s: at most %s are aimed at, so split it\n", s.name, took.Round(time.Second), shardLimit)
	}
	after, err := hashPaths(ctx, s.paths)
	if err != nil {
		return err
	}
	if before != after {
		return errors.New("its files have changed meanwhile: it is not recorded")
	}
	return recordRun(ctx, s, after, took)
}

func (m *mark) runSteps(ctx context.Context, prepare []string, steps []step) (parts []part) {
	if len(prepare) > 0 {
		out, c, err := runMeasured(exec.CommandContext(ctx, prepare[0], prepare[1:]...)) // #nosec -- of the table
		parts = append(parts, part{name: strings.Join(prepare, " "), cost: c, failed: err != nil})
		if err != nil {
			fmt.Printf("%s\n%s: %v\n", out, strings.Join(prepare, " "), err)
			return parts
		}
	}
	for _, s := range steps {
		if ctx.Err() != nil {
			break
		}
		parts = append(parts, m.runStep(ctx, s))
	}
	return parts
}

func (m *mark) runStep(ctx context.Context, s step) part {
	p, err := findPackage(s.of)
	if err != nil {
		return part{name: err.Error(), failed: true}
	}
	program, c, err := m.buildTest(ctx, p, s.isRaced)
	if err != nil {
		fmt.Println(err)
		return part{name: s.of, cost: c, failed: true}
	}
	r := testRun{of: p, program: program, pattern: s.pattern, isFull: true}
	if s.skip != "" {
		r.flags = []string{"-test.skip=" + s.skip}
	}
	ran := m.run(ctx, r)
	ran.add(c)
	if s.pattern != "" {
		ran.name += " " + s.pattern
	}
	return ran
}

// pickInTurn returns one of the shards whose last run was on the same day as the first shard's. The
// commit determines which one, so that all get a turn although the gate does not record its runs.
func pickInTurn(ctx context.Context, stale []shard) (shard, error) {
	runs, err := readRuns()
	if err != nil {
		return shard{}, err
	}
	commit, err := gitOutput(ctx, "rev-parse", "HEAD")
	if err != nil {
		return shard{}, err
	}
	oldest := slices.DeleteFunc(stale, func(s shard) bool { return runs[s.name].day != runs[stale[0].name].day })
	sum := sha256.Sum256([]byte(commit))
	return oldest[int(sum[0])%len(oldest)], nil
}

// runStalest runs the short step of the stale shard whose last run is the oldest, and warns about other
// stale shards.
func (m *mark) runStalest(ctx context.Context) []part {
	stale, err := staleShards(ctx)
	if err != nil {
		return []part{{name: err.Error(), failed: true}}
	}
	var names []string
	for _, s := range stale {
		names = append(names, s.name)
	}
	if len(names) > 0 {
		fmt.Printf("warning: since their last full run the files of these shards have changed: %s; make test-full SHARD=%s\n", strings.Join(names, ", "), names[0])
	}
	stale = slices.DeleteFunc(stale, func(s shard) bool { return s.short.of == "" })
	if len(stale) == 0 {
		return nil
	}
	s, err := pickInTurn(ctx, stale)
	if err != nil {
		return []part{{name: err.Error(), failed: true}}
	}
	parts := m.runSteps(ctx, s.prepare, []step{s.short})
	var took time.Duration
	for n := range parts {
		took += parts[n].wall
		parts[n].name = "short form of shard " + s.name + ": " + parts[n].name
	}
	if took > shortLimit {
		fmt.Printf("warning: the short form of shard %s took %s: at most %s are aimed at\n", s.name, took.Round(time.Second), shortLimit)
	}
	return parts
}
