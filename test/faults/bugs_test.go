// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs"
	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
	"cloudnative.tw/drover/test/faults/soak"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/rules"
	"cloudnative.tw/drover/test/tier"
)

// search looks for the effect of a bug.
type search func(context.Context, *lab.Lab) (lab.Result, error)

// exploring explores faults of some workloads, crashes if there are none.
func exploring(engine lab.Engine, faults crash.Faults, workloads ...string) search {
	return again(func(ctx context.Context, l *lab.Lab) (lab.Result, error) {
		return crash.FindViolation(ctx, l, engine, faults, workloads...)
	})
}

// maxTries is how often a search is repeated: whether a case shows a bug may depend on timing.
const maxTries = 5

// again repeats a search until it has found a violation.
func again(find search) search {
	return func(ctx context.Context, l *lab.Lab) (all lab.Result, err error) {
		for range maxTries {
			r, err := find(ctx, l)
			all.Runs += r.Runs
			if all.Violations = r.Violations; err != nil || len(r.Violations) > 0 {
				return all, err
			}
		}
		return all, nil
	}
}

// exploringDecisions is exploring with a bug that changes no decision.
func exploringDecisions(engine lab.Engine, workload string) search {
	return func(ctx context.Context, l *lab.Lab) (lab.Result, error) {
		l = l.With()
		l.PolicyDiffers = false
		return exploring(engine, nil, workload)(ctx, l)
	}
}

// only limits faults to faults of one name at points whose names begin with point.
func only(faults crash.Faults, point, name string) crash.Faults {
	return func(p string) []string {
		if !strings.HasPrefix(p, point) {
			return nil
		}
		return slices.DeleteFunc(faults(p), func(fault string) bool { return !strings.HasSuffix(fault, name) })
	}
}

// replaying runs one case of a kind.
func replaying(kind, name string) search {
	return again(func(ctx context.Context, l *lab.Lab) (lab.Result, error) {
		return findKind(kind).Replay(ctx, l, name)
	})
}

// exploringOnce explores a kind that consists of one case.
func exploringOnce(kind string) search {
	return func(ctx context.Context, l *lab.Lab) (lab.Result, error) {
		return findKind(kind).Explore(ctx, l, lab.SizeDefault)
	}
}

// buggyTests builds this test program with all bugs, for kinds whose drivers run in the test program.
var buggyTests = sync.OnceValues(func() (string, error) {
	overlay, err := writeOverlay()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	binary := filepath.Join(programs, "buggy.test")
	out, err := exec.CommandContext(ctx, "go", "test", "-c", "-overlay="+overlay, "-o", binary, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the tests with bugs: %w\n%s", err, out)
	}
	return binary, nil
})

// Output of a test program: a violation, and the number of runs in the row of the table.
var (
	violationPattern = regexp.MustCompile(`(?m)^ +faults_test\.go:\d+: (.*?): (O\d+): (.*)$`)
	runsPattern      = regexp.MustCompile(`(?m)^ *[a-z, ]+ \d+ +(\d+) +\d+ +\S+$`)
)

// exploringAgain explores a kind with the test program with bugs.
func exploringAgain(kind string) search {
	return func(ctx context.Context, l *lab.Lab) (r lab.Result, err error) {
		program, err := buggyTests()
		if err != nil {
			return r, err
		}
		cmd := exec.CommandContext(ctx, program, "-test.run=^TestFaults$/^"+kind+"$", "-size="+string(size))
		cmd.Env = append(os.Environ(), l.Variables...)
		out, err := cmd.CombinedOutput()
		runs := runsPattern.FindSubmatch(out)
		if runs == nil {
			return r, fmt.Errorf("a test program with bugs has explored nothing: %w\n%s", err, out)
		}
		for _, found := range violationPattern.FindAllStringSubmatch(string(out), -1) {
			r.Violations = append(r.Violations, lab.Violation{Case: found[1], Rule: rules.Rule(found[2]), Text: found[3]})
		}
		r.Runs, err = strconv.Atoi(string(runs[1]))
		return r, err
	}
}

func findKind(name string) lab.Kind {
	return kinds[slices.IndexFunc(kinds, func(k lab.Kind) bool { return k.Name == name })]
}

// shortSoak is a soak that is long enough to find leaks with each VirtualMachine.
func shortSoak(ctx context.Context, l *lab.Lab) (lab.Result, error) {
	return soak.Kind(soak.Settings{
		Engine: lab.Fake{}, Parallel: 8, Round: 4, Rest: time.Second, Lifecycles: map[lab.Size]int{lab.SizeDefault: 48},
	}).Explore(ctx, l, lab.SizeDefault)
}

// seededBug is a row of the table.
type seededBug struct {
	bug, kind, rule string
	find            search
	// isSlow is set if only make faults-full searches for the bug: another bug tests the same in less time.
	isSlow bool
}

const quick, slow = false, true

// seededBugs are bugs that a kind of fault must find, with the only rule that is broken in some case,
// or empty if several rules are always broken.
var seededBugs = []seededBug{
	{"finalizer-after-creation", "crash points, fake", "", exploring(lab.Fake{}, nil, "create"), quick},
	{"restart-recorded-late", "crash points, fake", "", exploring(lab.Fake{Instant: true}, nil, "restart"), quick},
	{"secret-logged", "crash points, fake", "O12", exploring(lab.Fake{}, nil, "create"), quick},
	{"server-by-recorded-id", "crash points, fake", "", exploring(lab.Fake{}, nil, "create"), quick},
	{"finalizer-after-creation", "crash points, docker", "", exploring(lab.NewDocker(), nil, "create"), slow},
	{"finalizer-after-creation", "crash points, qemu", "", exploring(lab.NewQEMU(), nil, "create"), slow},
	{"foreign-containers", "crash points, docker", "", exploring(lab.NewDocker(), nil, "create"), quick},
	{"foreign-machines", "crash points, qemu", "", exploring(lab.NewQEMU(), nil, "create"), quick},
	{"pause-pretended", "crash points, qemu", "O11", exploring(lab.NewQEMU(), nil, "pause"), quick},
	{"registry-answer-shown", "crash points, docker", "O12", exploring(lab.NewDocker(), nil, "image"), quick},
	{"input-not-recorded", "crash points, fake", "O14", exploringDecisions(lab.Fake{}, "delete"), quick},
	{"failed-report-forgotten", "answers of the API", "", exploring(lab.Fake{}, crash.Answers, "restart"), slow},
	{"call-without-timeout", "calls of drivers, fake", "", exploring(lab.Fake{}, crash.Calls, "resize"), slow},
	{"list-without-timeout", "calls of drivers, fake", "", exploring(lab.Fake{}, crash.Calls, "resize"), slow},
	{"unsettled-as-gone", "calls of drivers, fake", "", exploring(lab.Fake{}, crash.Calls, "create-delete"), quick},
	{"docker-random-name", "calls of drivers, docker", "", exploring(lab.NewDocker(), only(crash.Calls, "docker create container", "twice"), "create"), quick},
	{"qemu-second-process", "engine, qemu", "O3", exploring(lab.NewQEMU(), crash.DisturbCalls(outside.Suspended), "restart"), quick},
	{"qemu-ends-with-supervisor", "supervisor, qemu", "O7", exploring(lab.NewQEMU(), crash.DisturbCalls(outside.SupervisorKilled), "resize"), quick},
	{"supervisor-missing-as-end", "supervisor, qemu", "", exploring(lab.NewQEMU(), crash.DisturbCalls(outside.SupervisorKilled), "resize"), slow},
	{"silent-supervisor-kept", "supervisor, qemu", "", exploring(lab.NewQEMU(), crash.DisturbCalls(outside.SupervisorHalted), "resize"), slow},
	{"failed-files-forgotten", "calls of drivers, container", "O10", exploring(lab.NewContainers(false), only(crash.Calls, "qemu.WriteFiles", "fails"), "files"), slow},
	{"pause-by-annotation", "crash points, pod", "", exploring(lab.NewPod(), nil, "pause"), quick},
	{"killed-container-kept", "machine, pod", "", exploring(lab.NewPod(), crash.DisturbCalls(outside.ContainerKilled), "restart"), slow},
	{"epochs-not-compared", "two leaders, fake", "", exploring(lab.Fake{}, only(crash.DisturbCalls(outside.Superseded), "fake.Ensure", ""), "power", "create-delete", "resize"), quick},
	{"drift-left", "engine, fake", "", exploring(lab.Fake{}, crash.DisturbCalls(outside.Resized), "power"), quick},
	{"object-not-confirmed", "old lists", "", replaying("old lists", oldList), quick},
	{"not-before-creation", "clock of the API", "O10", replaying("clock of the API", "create/fake/restart/ADDED virtualmachines vm-1#1/ahead"), quick},
	{"sweep-never-frozen", "etcd", "O6", replaying("etcd", "restored, many are lost"), quick},
	{"goroutine-leaked", "soak, fake", "O13", shortSoak, quick},
	{"drift-left", "engine, docker", "", exploring(lab.NewDocker(), crash.DisturbCalls(outside.Resized), "resize"), slow},
	{"finalizer-after-creation", "crash points, two drivers", "", exploring(crash.Pair{Engine: lab.Fake{}, Second: lab.NewQEMU()}, nil, "move"), slow},
	{"wake-up-forgotten", "engine, qemu", "", exploring(lab.NewQEMU(), crash.DisturbCalls(outside.Killed), "resize"), slow},
	{"empty-records-left", "power cuts, fake", "O10", exploringAgain("power cuts, fake"), quick},
	{"installed-not-synced", "power cuts, qemu", "O10", exploringAgain("power cuts, qemu"), slow},
	{"image-not-synced", "power cuts, qemu", "O10", exploringAgain("power cuts, qemu"), slow},
	{"flushes-ignored", "guest writes", "O9", exploringOnce("guest writes"), quick},
}

// undecided are bugs whose violations follow no decision of the controller.
var undecided = []string{"goroutine-leaked", "not-before-creation", "empty-records-left", "installed-not-synced", "image-not-synced"}

// withoutBugs are kinds without a bug in the table, with the reasons.
var withoutBugs = map[string]string{
	"watch events":            "what a single event leaves undone, another read makes up for: a Lease that is watched once, or a recreation that is not noticed, break no rule",
	"two leaders, qemu":       "the call of the halted leader often times out before a machine has changed; its folder compares epochs as that of fake does",
	"two leaders, pod":        "a halted leader decided from old versions of objects, which the API server refuses; TestTwoLeaders compares epochs",
	"calls of drivers, qemu":  "it has the faults and rules of docker",
	"rest":                    "it looks for longer at what crash points look at, and TestSeededBugs of schedules breaks that rule",
	"clock of Docker":         "TestClockIsShown of package lab shows that it steps",
	"crash points, container": "it has the rules of crash points, qemu; it has found two more bugs, which docs/faults.md names",
	"supervisor, container":   "it has the faults and rules of supervisor, qemu",
	"soak, docker":            "it has the rules of fake",
	"soak, qemu":              "it has the rules of fake",
}

// TestEveryKindHasABug checks that the table has a bug for each kind of fault.
func TestEveryKindHasABug(t *testing.T) {
	for _, k := range kinds {
		seeded := slices.ContainsFunc(seededBugs, func(b seededBug) bool { return b.kind == k.Name })
		_, excused := withoutBugs[k.Name]
		assert.True(t, seeded != excused, "%s: it must have either a seeded bug or a reason not to", k.Name)
	}
}

// TestEveryRuleIsNeeded checks that for each rule some bug breaks only this rule.
func TestEveryRuleIsNeeded(t *testing.T) {
	var alone []string
	for _, b := range seededBugs {
		alone = append(alone, b.rule)
	}
	for _, b := range bugs.All {
		alone = append(alone, b.Rules)
	}
	for rule := range rules.Sentences {
		assert.True(t, slices.Contains(alone, string(rule)), "no bug breaks only %s", rule)
	}
}

// buggyController builds a controller with crash points in which each bug can be enabled.
var buggyController = sync.OnceValues(func() (string, error) {
	overlay, err := writeOverlay()
	if err != nil {
		return "", err
	}
	return buildController("buggy", "-tags=faults", "-overlay="+overlay)
})

// writeOverlay writes the sources with all bugs.
var writeOverlay = sync.OnceValues(func() (string, error) {
	root, err := framework.RepositoryRoot()
	if err != nil {
		return "", err
	}
	return bugs.WriteOverlay(root, programs)
})

// TestSeededBugs checks that each bug is found, and prints the table of docs/faults.md. Searches
// mostly wait, so several run at a time.
func TestSeededBugs(t *testing.T) {
	tier.Full(t, "builds and a search for each bug; the gate keeps the rules, and TestEveryRuleIsNeeded")
	shared := newSharedLabs(t, buggyController)
	found := make([]lab.Result, len(seededBugs))
	t.Cleanup(func() { printFound(found) })
	for n, b := range seededBugs {
		t.Run(b.bug+" by "+b.kind, func(t *testing.T) {
			if b.isSlow && size != lab.SizeFull {
				t.Skip("make faults-full finds it")
			}
			t.Parallel()
			l, err := shared[findKind(b.kind).NeedsPods]()
			if findKind(b.kind).NeedsOwnLab {
				l, err = newLab(t, buggyController)
			}
			assert.NoError(t, err)
			l = l.With(bugs.Variable + "=" + b.bug)
			l.PolicyDiffers = true
			r, err := b.find(t.Context(), l)
			assert.NoError(t, err)
			defer removeKept(r.Violations)
			b.check(t, r)
			found[n] = r
		})
	}
}

// check checks the result of the search for a bug.
func (b seededBug) check(t *testing.T, r lab.Result) {
	t.Helper()
	assert.Require(t, len(r.Violations) != 0, "not found in %d runs", r.Runs)
	for _, v := range r.Violations {
		assert.True(t, v.History != "" || slices.Contains(undecided, b.bug), "no decisions are shown of %s", v)
	}
	assert.True(t, b.rule == "" || isFoundBy(r, b.rule), "no case breaks only %s: %v", b.rule, r.Violations)
	t.Logf("found after %d runs: %s", r.Runs, r.Violations[0])
	t.Log(r.Violations[0].History)
}

// isFoundBy reports whether some case breaks only this rule. Other cases may break more rules by
// chance.
func isFoundBy(r lab.Result, rule string) bool {
	broken := map[string]lab.Result{}
	for _, v := range r.Violations {
		of := broken[v.Case]
		of.Violations = append(of.Violations, v)
		broken[v.Case] = of
	}
	for _, of := range broken {
		if slices.Equal(brokenRules(of), []string{rule}) {
			return true
		}
	}
	return false
}

// brokenRules returns all broken rules without duplicates.
func brokenRules(r lab.Result) (all []string) {
	for _, v := range r.Violations {
		all = append(all, string(v.Rule))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// printFound prints a row for each seeded bug that was found.
func printFound(found []lab.Result) {
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, _ = fmt.Fprintln(table, "| bug\t| found by\t| rules\t| runs\t|")
	for n, b := range seededBugs {
		if r := found[n]; r.Runs > 0 {
			_, _ = fmt.Fprintf(table, "| `%s`\t| %s\t| %s\t| %d\t|\n", b.bug, b.kind, strings.Join(brokenRules(r), ", "), r.Runs)
		}
	}
	_ = table.Flush()
}

// removeKept removes the files that are kept for a replay of violations.
func removeKept(all []lab.Violation) {
	for _, v := range all {
		if filepath.IsAbs(v.Case) {
			_ = os.RemoveAll(v.Case)
			_ = os.Remove(v.Case + ".marks.json")
		}
	}
}
