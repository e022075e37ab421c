// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, setUp)) }

// programs is the folder of built programs; each is built at most once.
var programs string

func setUp() (after func() error, err error) {
	programs, err = os.MkdirTemp("", "drover-failover-")
	return func() error { return os.RemoveAll(programs) }, err
}

var (
	unfencedController = sync.OnceValues(func() (string, error) { return buildProgram("cmd/drover-controller", "unfenced") })
	processRecorder    = sync.OnceValues(func() (string, error) { return buildProgram("test/failover/recorder", "") })
)

// fencedController returns this test program, which replicas run as a controller.
func fencedController(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	assert.NoError(t, err)
	return self
}

// buildProgram builds a program of this module.
func buildProgram(pkg, tags string) (string, error) {
	binary := filepath.Join(programs, filepath.Base(pkg)+"-"+tags)
	return binary, framework.BuildProgram(binary, pkg, "-tags="+tags)
}

// builtProgram returns the result of a build, or fails the test.
func builtProgram(t testing.TB, build func() (string, error)) string {
	t.Helper()
	binary, err := build()
	assert.NoError(t, err)
	return binary
}

var (
	seedFlag = flag.Uint64("failover.seed", 0, "repeats the faults of an earlier run; 0 means 1, or a random one in the full tier")
	dirFlag  = flag.String("failover.dir", "", "folder in which journals and logs are left")
)

const (
	// minViolations is the number of violations after which the tests of the oracle end.
	minViolations = 2
	// maxHalts ends these tests if fewer violations happen.
	maxHalts = 200
)

// faultPlan says how often each fault is injected, in each of several environments.
type faultPlan struct {
	environments uint64
	faults       map[Kind]int
}

var (
	gatePlan = faultPlan{1, map[Kind]int{Halt: 2, Kill: 2, Disconnect: 1, Blackhole: 1, DelayReplies: 1, DeleteLease: 1}}
	fullPlan = faultPlan{2, map[Kind]int{Halt: 50, Kill: 10, Term: 10, Disconnect: 13, Blackhole: 13, DelayReplies: 25, DeleteLease: 10, KillAPI: 5}}
)

func (p faultPlan) kinds() []Kind {
	var all []Kind
	for kind, n := range p.faults {
		for range n {
			all = append(all, kind)
		}
	}
	slices.Sort(all) // so that a seed always gives the same faults
	return all
}

func newSeed(t testing.TB) uint64 {
	t.Helper()
	seed := cmp.Or(*seedFlag, 1)
	if *seedFlag == 0 && tier.IsFull() {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-failover.seed=%d", seed)
	return seed
}

// outputDir returns where an environment stores its journal and logs.
func outputDir(t testing.TB, name string) string {
	t.Helper()
	if *dirFlag == "" {
		return t.TempDir()
	}
	dir := filepath.Join(*dirFlag, fmt.Sprintf("%s-%d", name, time.Now().UnixNano()))
	assert.NoError(t, os.MkdirAll(dir, 0o700))
	t.Logf("journal and logs are left in %s", dir)
	return dir
}

// TestFailover checks that during all faults no two replicas act on one server, that nothing is lost,
// and that in the end all VMs are as requested.
func TestFailover(t *testing.T) {
	t.Parallel()
	p := gatePlan
	if tier.IsFull() {
		p = fullPlan
	}
	binary, seed, faults := fencedController(t), newSeed(t), p.kinds()
	for n := range p.environments {
		t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
			t.Parallel()
			w := newEnvironment(t, binary, outputDir(t, "fenced"), seed+n)
			e := w.runWithFaults(t, func(ctx context.Context, w *environment) ([]Fault, error) {
				return newFaultInjector(w, faults, seed+n).injectAll(ctx)
			})
			t.Log(e.Summary())
			assert.True(t, len(e.Faults) == len(faults), "%d faults were injected, want %d", len(e.Faults), len(faults))
			for _, v := range rules.Judge(e.Evidence) {
				t.Errorf("%s\n%s", v, e.History(v.UID))
			}
		})
	}
}

// TestJudgeDetectsViolations checks that without guard and fence, halted replicas act after their
// successors, and that the oracle reports this.
func TestJudgeDetectsViolations(t *testing.T) {
	tier.Full(t, "it is a separate program, and replicas collide after minutes; the gate keeps TestJudge")
	t.Parallel()
	binary, seed := builtProgram(t, unfencedController), newSeed(t)
	w := newEnvironment(t, binary, outputDir(t, "unfenced"), seed)
	w.unjudged = true
	e := w.runWithFaults(t, haltUntilViolations(seed))
	t.Logf("without guard and fence:\n%s", e.Summary())
	violations := rules.EpochDecreases(e.Journal) // the other rules may not hold yet
	for _, v := range violations {
		t.Log(v)
	}
	assert.True(t, len(violations) != 0, "no violation was found: the check detects nothing")
}

// haltUntilViolations halts replicas until enough of them have acted after their successors.
func haltUntilViolations(seed uint64) faultFunc {
	return func(ctx context.Context, w *environment) ([]Fault, error) {
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			defer cancel()
			_ = assert.Poll(ctx, "replicas act after their successors", func() error {
				found := currentEpochDecreases(w.journal)
				return assert.ErrorUnless(len(found) >= minViolations, "%d replicas have", len(found))
			})
		}()
		return newFaultInjector(w, faultPlan{faults: map[Kind]int{Halt: maxHalts}}.kinds(), seed).injectAll(ctx)
	}
}

func currentEpochDecreases(journal string) []rules.Violation {
	entries, err := rules.Read(journal, new(int64))
	if err != nil {
		return nil // the evidence shows violations
	}
	return rules.EpochDecreases(entries)
}
