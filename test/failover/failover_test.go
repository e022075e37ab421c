// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/history"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/framework/users"
)

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, setUp)) }

// programs is the folder of built programs; each is built at most once.
var programs string

func setUp() (after func() error, err error) {
	programs, err = os.MkdirTemp("", "drover-failover-")
	return func() error { return os.RemoveAll(programs) }, err
}

var (
	fencedController   = sync.OnceValues(func() (string, error) { return buildProgram("cmd/drover-controller", "") })
	unfencedController = sync.OnceValues(func() (string, error) { return buildProgram("cmd/drover-controller", "unfenced") })
	processRecorder    = sync.OnceValues(func() (string, error) { return buildProgram("test/failover/recorder", "") })
)

// buildProgram builds a program of this module.
func buildProgram(pkg, tags string) (string, error) {
	binary := filepath.Join(programs, filepath.Base(pkg)+"-"+tags)
	return binary, framework.BuildProgram(binary, pkg, "-tags="+tags)
}

// builtProgram is the result of one of the builds.
func builtProgram(t testing.TB, build func() (string, error)) string {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// The environment of the test.
const (
	// sizeEnv selects the number of faults: full, or empty for few.
	sizeEnv = "DROVER_FAILOVER"
	// seedEnv repeats the faults of an earlier run.
	seedEnv = "DROVER_FAILOVER_SEED"
	// dirEnv is a folder in which journals and logs are stored.
	dirEnv = "DROVER_FAILOVER_DIR"
)

const (
	// minViolations is the number of violations after which the tests of the oracle end.
	minViolations = 2
	// haltTimeout and maxHalts bound these tests if there are fewer.
	haltTimeout = 5 * time.Minute
	maxHalts    = 200
)

// faultPlan says how often each fault is injected, in each of several environments.
type faultPlan struct {
	environments uint64
	faults       map[Kind]int
}

var faultPlans = map[string]faultPlan{
	"":     {1, map[Kind]int{Halt: 8, Kill: 3, Term: 3, Disconnect: 3, Blackhole: 3, DelayReplies: 5, DeleteLease: 3, KillAPI: 2}},
	"full": {2, map[Kind]int{Halt: 50, Kill: 10, Term: 10, Disconnect: 13, Blackhole: 13, DelayReplies: 25, DeleteLease: 10, KillAPI: 5}},
}

func (p faultPlan) kinds() []Kind {
	var all []Kind
	for kind, n := range p.faults {
		for range n {
			all = append(all, kind)
		}
	}
	slices.Sort(all) // the same seed, the same faults
	return all
}

func newSeed(t testing.TB) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	t.Logf("%s=%d", seedEnv, seed)
	return seed
}

// outputDir returns where an environment stores its journal and logs.
func outputDir(t testing.TB, name string) string {
	t.Helper()
	dir := os.Getenv(dirEnv)
	if dir == "" {
		return t.TempDir()
	}
	dir = filepath.Join(dir, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Logf("journal and logs are left in %s", dir)
	return dir
}

// TestFailover checks that, whatever happens to replicas, no two act on one server,
// nothing is lost, and in the end all is as users requested.
func TestFailover(t *testing.T) {
	t.Parallel()
	p, known := faultPlans[os.Getenv(sizeEnv)]
	if !known {
		t.Fatalf("%s is %q: it must be full or empty", sizeEnv, os.Getenv(sizeEnv))
	}
	binary, seed := builtProgram(t, fencedController), newSeed(t)
	results := make(chan Figures, p.environments)
	t.Run("environments", func(t *testing.T) {
		for n := range p.environments {
			t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
				t.Parallel()
				results <- runEnvironment(t, binary, p.kinds(), seed+n)
			})
		}
	})
	close(results)
	var all Figures
	for f := range results {
		all.Add(f)
	}
	t.Logf("in %d environments:\n%s", p.environments, all)
}

func runEnvironment(t *testing.T, binary string, faults []Kind, seed uint64) Figures {
	t.Helper()
	begin := time.Now()
	w := newEnvironment(t, binary, outputDir(t, "fenced"), seed)
	e := w.runWithFaults(t, func(ctx context.Context, w *environment) ([]Fault, error) {
		return newFaultInjector(w, faults, seed).injectAll(ctx)
	})
	if len(e.Faults) != len(faults) {
		t.Errorf("%d faults were injected, want %d", len(e.Faults), len(faults))
	}
	f := Count(e)
	f.Took, f.Elections = time.Since(begin), w.countElections()
	for _, v := range f.Violations {
		t.Errorf("%s\n%s", v, e.History(v.UID))
	}
	return f
}

// TestJudgeDetectsViolations checks that without guard and fence, replicas that were halted
// act after their successors, and that the oracle reports it.
func TestJudgeDetectsViolations(t *testing.T) {
	t.Parallel()
	binary, seed := builtProgram(t, unfencedController), newSeed(t)
	begin := time.Now()
	w := newEnvironment(t, binary, outputDir(t, "unfenced"), seed)
	w.settleTimeout = 0
	e := w.runWithFaults(t, haltUntilViolations(seed))
	f := Count(e)
	f.Took, f.Elections = time.Since(begin), w.countElections()
	f.Violations = history.EpochDecreases(e.Journal) // the test did not wait for the other rules to hold
	t.Logf("without guard and fence:\n%s", f)
	for _, v := range f.Violations {
		t.Log(v)
	}
	if len(f.Violations) == 0 {
		t.Error("no violation was found: the check detects nothing")
	}
}

// haltUntilViolations halts replicas until enough of them acted after their successors.
func haltUntilViolations(seed uint64) faultFunc {
	return func(ctx context.Context, w *environment) ([]Fault, error) {
		ctx, cancel := context.WithTimeout(ctx, haltTimeout)
		defer cancel()
		go func() {
			for ; ctx.Err() == nil; users.Sleep(ctx, time.Second) {
				if len(currentEpochDecreases(w.journal)) >= minViolations {
					cancel()
				}
			}
		}()
		return newFaultInjector(w, faultPlan{faults: map[Kind]int{Halt: maxHalts}}.kinds(), seed).injectAll(ctx)
	}
}

func currentEpochDecreases(journal string) []Violation {
	entries, err := history.Read(journal, new(int64))
	if err != nil {
		return nil // the evidence shows it
	}
	return history.EpochDecreases(entries)
}
