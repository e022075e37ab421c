// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0

package schedules

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs"
	"cloudnative.tw/drover/test/tier"
)

var (
	seedFlag    = flag.Uint64("seed", 0, "run only this schedule and print its trace")
	firstFlag   = flag.Uint64("first", 0, "the first seed; 0 means random in the full tier, else 1")
	seedsFlag   = flag.Int("seeds", 1, "how many seeds to replay")
	replaysFlag = flag.Int("replays", 0, "how often to replay each seed; 0 means 100 times in the full tier, else 20")
	bugFlag     = flag.String("bug", "", "run only this seeded bug")
	bugFlagTime = flag.Duration("bug-duration", 5*time.Minute, "the most CPU time to look for a seeded bug")
	untilFlag   = flag.Bool("until-violation", false, "stop at the first violation")
	workersFlag = flag.Uint64("workers", uint64(runtime.GOMAXPROCS(0)), "how many processes explore")
	strideFlag  = flag.Uint64("stride", 1, "the difference between one seed and the next")
	timeFlag    = flag.Duration("duration", 0, "the CPU time for which each process explores schedules; 0 means 30 s in the full tier, and gateSchedules schedules in the gate")
)

// gateSchedules is how many schedules the gate explores: the same ones on every host.
const gateSchedules = 200

// isGate reports whether this run explores the schedules of the gate.
func isGate() bool { return *timeFlag == 0 }

func TestMain(m *testing.M) {
	flag.Parse()
	if tier.IsFull() {
		*timeFlag, *replaysFlag = cmp.Or(*timeFlag, 30*time.Second), cmp.Or(*replaysFlag, 100)
		*firstFlag = cmp.Or(*firstFlag, rand.Uint64N(1<<32)) //nolint:gosec // chance
	}
	*replaysFlag, *firstFlag = cmp.Or(*replaysFlag, 20), cmp.Or(*firstFlag, 1)
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	utilruntime.ErrorHandlers = nil // the default handlers keep times of earlier bubbles
	os.Exit(m.Run())
}

func run(t *testing.T, o Options) (result Result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var err error
		result, err = Run(o)
		assert.NoError(t, err)
	})
	return result
}

// TestSchedules explores schedules, or replays one.
func TestSchedules(t *testing.T) {
	if *seedFlag != 0 {
		r := run(t, Options{Seed: *seedFlag, Trace: io.Writer(os.Stdout)})
		t.Logf("%d steps, %d handovers, %d requests by users, %v", r.Steps, r.Handovers, r.Actions, r.Faults)
		t.Log(r.History)
		for _, v := range r.Violations {
			t.Error(v)
		}
		return
	}
	if *workersFlag > 1 {
		exploreInProcesses(t)
		return
	}
	explore(t)
}

// explore explores schedules until a number or a time is reached, and prints counts.
func explore(t *testing.T) {
	t.Helper()
	total := Result{Faults: map[string]int{}}
	count := 0
	isOver := func(seed uint64) bool {
		return isGate() && seed >= *firstFlag+gateSchedules || !isGate() && cpuTime(t) > *timeFlag || *untilFlag && t.Failed()
	}
	for seed := *firstFlag; !isOver(seed); seed += *strideFlag {
		r := run(t, Options{Seed: seed})
		count++
		total.add(r)
		for _, v := range r.Violations {
			t.Errorf("%s\n\tgo test ./test/schedules -run TestSchedules -v -seed %d\n%s", v, seed, r.History)
		}
	}
	total.Faults["schedules"], total.Faults["steps"], total.Faults["handovers"], total.Faults["requests by users"] = count, total.Steps, total.Handovers, total.Actions
	for _, kind := range slices.Sorted(maps.Keys(total.Faults)) {
		t.Logf("count %8d %s", total.Faults[kind], kind)
	}
}

// cpuTime returns the CPU time of this process, a limit that does not depend on the host's load.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	assert.NoError(t, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func (r *Result) add(other Result) {
	r.Steps, r.Handovers, r.Actions = r.Steps+other.Steps, r.Handovers+other.Handovers, r.Actions+other.Actions
	for kind, n := range other.Faults {
		r.Faults[kind] += n
	}
}

var countLine = regexp.MustCompile(`count +(\d+) (.*)`)

// exploreInProcesses explores disjoint seeds in several processes, because a process has only
// one source of random numbers for client-go.
func exploreInProcesses(t *testing.T) {
	t.Helper()
	t.Logf("the first seed is %d", *firstFlag)
	outs := make(chan string)
	for n := range *workersFlag {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestSchedules$", "-test.v", "-workers", "1",
			"-first", strconv.FormatUint(*firstFlag+n, 10), "-stride", strconv.FormatUint(*workersFlag, 10), "-duration", timeFlag.String())
		go func() {
			out, _ := cmd.CombinedOutput()
			outs <- string(out)
		}()
	}
	counts := map[string]int{}
	for range *workersFlag {
		out := <-outs
		for _, match := range countLine.FindAllStringSubmatch(out, -1) {
			n, _ := strconv.Atoi(match[1])
			counts[match[2]] += n
		}
		if !strings.Contains(out, "--- PASS") {
			t.Error(out)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d %s", counts[kind], kind)
	}
}

// TestSeededBugs checks that each bug of the list breaks one of its rules and no others.
func TestSeededBugs(t *testing.T) {
	if *bugFlag == "" {
		tier.Full(t, "builds a program with all bugs and searches for minutes; the gate keeps the rules, in TestSchedules")
	}
	binary := buildWithBugs(t)
	for _, bug := range bugs.All {
		if bug.Rules == "" || *bugFlag != "" && bug.Name != *bugFlag {
			continue
		}
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestSchedules$", "-test.v", "-workers", "1", "-until-violation", "-first", "1", "-duration", bugFlagTime.String())
			cmd.Env = append(os.Environ(), bugs.Variable+"="+bug.Name)
			out, err := cmd.CombinedOutput()
			assert.Require(t, err != nil, "the bug was not found: %s", out[:min(len(out), 200)])
			for n, found := range violationLine.FindAllString(string(out), -1) {
				rule, _, _ := strings.Cut(found, ":")
				if !slices.Contains(strings.Split(bug.Rules, "|"), rule) {
					t.Errorf("the bug has broken another rule than %s: %s", bug.Rules, found)
				} else if n == 0 {
					t.Logf("found: %s", found)
				}
			}
		})
	}
}

var violationLine = regexp.MustCompile(`O[0-9]+: .*`)

// buildWithBugs builds this test with all bugs.
func buildWithBugs(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	assert.NoError(t, err)
	dir := t.TempDir()
	overlay, err := bugs.WriteOverlay(root, dir)
	assert.NoError(t, err)
	binary := filepath.Join(dir, "schedules.test")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-overlay", overlay, "-o", binary, ".")
	out, err := cmd.CombinedOutput()
	assert.Require(t, err == nil, "%v: %s", err, out)
	return binary
}

// TestReplay checks that a seed always has the same trace.
func TestReplay(t *testing.T) {
	for seed := *firstFlag; seed < *firstFlag+uint64(*seedsFlag); seed++ { //nolint:gosec // few
		t.Logf("the seed is %d", seed)
		var want bytes.Buffer
		run(t, Options{Seed: seed, Trace: &want})
		for n := range *replaysFlag {
			var got bytes.Buffer
			run(t, Options{Seed: seed, Trace: &got})
			if line := firstDifference(want.String(), got.String()); line != "" {
				t.Errorf("seed %d, replay %d: %s", seed, n, line)
				break
			}
		}
	}
}

// firstDifference describes the first difference between two traces.
func firstDifference(first, second string) string {
	a, b := strings.Split(first, "\n"), strings.Split(second, "\n")
	for n := range min(len(a), len(b)) {
		if a[n] != b[n] {
			return fmt.Sprintf("line %d\n%s\n- %s\n+ %s", n+1, strings.Join(a[max(0, n-6):n], "\n"), a[n], b[n])
		}
	}
	if len(a) != len(b) {
		return "one trace is longer"
	}
	return ""
}
