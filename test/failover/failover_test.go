// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/test/rig"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, makeRoom)) }

// programs is the folder of built programs; each is built at most once.
var programs string

func makeRoom() (after func() error, err error) {
	programs, err = os.MkdirTemp("", "drover-failover-")
	return func() error { return os.RemoveAll(programs) }, err
}

var (
	fenced   = sync.OnceValues(func() (string, error) { return build("cmd/drover-controller", "") })
	unfenced = sync.OnceValues(func() (string, error) { return build("cmd/drover-controller", "unfenced") })
	recorder = sync.OnceValues(func() (string, error) { return build("test/failover/recorder", "") })
)

// build builds a program of this module.
func build(pkg, tags string) (string, error) {
	binary := filepath.Join(programs, filepath.Base(pkg)+"-"+tags)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-tags="+tags, "-o", binary, "cloudnative.tw/drover/"+pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return binary, nil
}

// program is the result of one of the builds.
func program(t testing.TB, build func() (string, error)) string {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// The environment of the test.
const (
	// sizeEnv asks for more faults: full.
	sizeEnv = "DROVER_FAILOVER"
	// seedEnv repeats the faults of an earlier run.
	seedEnv = "DROVER_FAILOVER_SEED"
	// dirEnv is a folder in which journals and logs are kept.
	dirEnv = "DROVER_FAILOVER_DIR"
)

const (
	// enough is how many violations end the tests of the oracle.
	enough = 2
	// haltsWithin and maxHalts bound these tests if there are fewer.
	haltsWithin = 5 * time.Minute
	maxHalts    = 200
)

// plan says how often each fault is injected, in each of several worlds.
type plan struct {
	worlds uint64
	faults map[Kind]int
}

var plans = map[string]plan{
	"":     {1, map[Kind]int{Halt: 8, Kill: 3, Term: 3, Cut: 3, Blackhole: 3, Late: 5, Unlease: 3, KillAPI: 2}},
	"full": {2, map[Kind]int{Halt: 50, Kill: 10, Term: 10, Cut: 13, Blackhole: 13, Late: 25, Unlease: 10, KillAPI: 5}},
}

func (p plan) kinds() []Kind {
	var all []Kind
	for kind, n := range p.faults {
		for range n {
			all = append(all, kind)
		}
	}
	slices.Sort(all) // the same seed, the same faults
	return all
}

func seedOf(t testing.TB) uint64 {
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

// folder returns where a world stores its journal and logs.
func folder(t testing.TB, name string) string {
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
	p, known := plans[os.Getenv(sizeEnv)]
	if !known {
		t.Fatalf("%s is %q: it must be full or empty", sizeEnv, os.Getenv(sizeEnv))
	}
	binary, seed := program(t, fenced), seedOf(t)
	results := make(chan Figures, p.worlds)
	t.Run("worlds", func(t *testing.T) {
		for n := range p.worlds {
			t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
				t.Parallel()
				results <- storms(t, binary, p.kinds(), seed+n)
			})
		}
	})
	close(results)
	var all Figures
	for f := range results {
		all.Add(f)
	}
	t.Logf("in %d worlds:\n%s", p.worlds, all)
}

func storms(t *testing.T, binary string, faults []Kind, seed uint64) Figures {
	t.Helper()
	begin := time.Now()
	w := newWorld(t, binary, folder(t, "fenced"), seed)
	e := w.run(t, func(ctx context.Context, w *world) ([]Fault, error) {
		return newStorm(w, faults, seed).rage(ctx)
	})
	if len(e.Faults) != len(faults) {
		t.Errorf("%d faults struck, want %d", len(e.Faults), len(faults))
	}
	f := Count(e)
	f.Took, f.Leads = time.Since(begin), w.leads()
	for _, v := range f.Violations {
		t.Errorf("%s\n%s", v, e.History(v.UID))
	}
	return f
}

// TestTheCheckCanFail checks that without guard and fence, replicas that were halted
// act after their successors, and that the oracle reports it.
func TestTheCheckCanFail(t *testing.T) {
	t.Parallel()
	binary, seed := program(t, unfenced), seedOf(t)
	begin := time.Now()
	w := newWorld(t, binary, folder(t, "unfenced"), seed)
	w.patience = 0
	e := w.run(t, func(ctx context.Context, w *world) ([]Fault, error) {
		ctx, cancel := context.WithTimeout(ctx, haltsWithin)
		defer cancel()
		go func() {
			for ; ctx.Err() == nil; sleep(ctx, time.Second) {
				if len(fallenSoFar(w.journal)) >= enough {
					cancel()
				}
			}
		}()
		return newStorm(w, plan{faults: map[Kind]int{Halt: maxHalts}}.kinds(), seed).rage(ctx)
	})
	f := Count(e)
	f.Took, f.Leads = time.Since(begin), w.leads()
	f.Violations = Fallen(e.Journal) // the test did not wait for the other rules to hold
	t.Logf("without guard and fence:\n%s", f)
	for _, v := range f.Violations {
		t.Log(v)
	}
	if len(f.Violations) == 0 {
		t.Error("no violation was found: the check is worth nothing")
	}
}

func fallenSoFar(journal string) []Violation {
	entries, err := readJournal(journal, new(int64))
	if err != nil {
		return nil // the evidence shows it
	}
	return Fallen(entries)
}
