// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/powercut"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

var (
	caseFlag = flag.String("case", "", "name of the one case to run again, with -run and the kind's name")
	sizeFlag = flag.String("size", "", "how much is explored: short, default, full, exhaustive or soak; short in the gate and default in the full tier, unless it is set")
)

// size is how many cases are explored.
var size lab.Size

func TestMain(m *testing.M) {
	if ran, err := powercut.RunWorkload(context.Background()); ran {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	flag.Parse()
	size = lab.Size(cmp.Or(*sizeFlag, string(map[bool]lab.Size{false: lab.SizeShort, true: lab.SizeDefault}[tier.IsFull()])))
	os.Exit(runTests(m))
}

// programs is the folder of built programs.
var programs string

func runTests(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "drover-faults-programs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(programs) }()
	return m.Run()
}

// faultsController builds a controller with crash points.
var faultsController = sync.OnceValues(func() (string, error) { return buildController("faults", "-tags=faults") })

// plainController returns the controller that users get: the program beside drover, from make build,
// or else a new build.
var plainController = sync.OnceValues(func() (string, error) {
	drover, err := framework.DroverBinary()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(filepath.Dir(drover), "drover-controller")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	return buildController("plain")
})

// buildController builds a controller with further flags of go build.
func buildController(name string, flags ...string) (string, error) {
	binary := filepath.Join(programs, name)
	return binary, framework.BuildController(binary, append(flags, "-ldflags=-s -w")...)
}

// newLab returns a lab that is closed at the end of a test.
func newLab(t *testing.T, build func() (string, error), clusterFlags ...string) (*lab.Lab, error) {
	program, err := build()
	if err != nil {
		return nil, err
	}
	l, err := lab.Open(program, clusterFlags...)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { assert.NoError(t, l.Close()) })
	return l, nil
}

// sharedLabs are the labs that most kinds share: one whose cluster has PodAPIs, and one without.
type sharedLabs map[bool]func() (*lab.Lab, error)

// newSharedLabs returns labs that are opened when they are needed, and closed at the end of a test.
func newSharedLabs(t *testing.T, build func() (string, error)) sharedLabs {
	return sharedLabs{
		false: sync.OnceValues(func() (*lab.Lab, error) { return newLab(t, build) }),
		true:  sync.OnceValues(func() (*lab.Lab, error) { return newLab(t, build, lab.PodAPIs...) }),
	}
}

// TestFaults explores every kind of fault and prints the table: each row at once, in case a later
// kind takes too long, and all rows at the end. Most kinds mostly wait, so several are explored at a
// time, after the kinds that measure.
func TestFaults(t *testing.T) {
	explored := make([]*lab.Result, len(kinds))
	t.Cleanup(func() { printTable(explored) })
	shared := newSharedLabs(t, faultsController)
	for n, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			if !k.IsIn(size) && *caseFlag == "" {
				t.Skipf("it is explored in the sizes %v; the gate explores faults on the fake engine", k.Sizes)
			}
			if !k.Unmarked {
				t.Parallel()
			}
			l, err := labFor(t, k, shared)
			assert.NoError(t, err)
			r, err := explore(t.Context(), k, l)
			if l != nil {
				r.Notes = append(r.Notes,
					fmt.Sprintf("%d recorded decisions were derived again", l.TakeReplayed()),
					fmt.Sprintf("the slowest deletion took %s, its faults included", l.SlowestDeletion().Round(time.Millisecond)))
			}
			explored[n] = &r
			printResult(k.Name, r)
			assert.ReportError(t, err)
			for _, v := range r.Violations {
				t.Errorf("%s\n  again: go test ./test/faults -run 'TestFaults/%s' -case '%s'\n%s", v, k.Name, v.Case, v.History)
			}
		})
	}
}

// printing is held while the lines of a kind are printed.
var printing sync.Mutex

func printResult(kind string, r lab.Result) {
	printing.Lock()
	defer printing.Unlock()
	lab.PrintHeader(os.Stdout)
	r.PrintRow(os.Stdout, kind)
	r.PrintNotes(os.Stdout, kind)
}

// printTable prints the rows of all kinds that were explored.
func printTable(explored []*lab.Result) {
	lab.PrintHeader(os.Stdout)
	for n, r := range explored {
		if r != nil {
			r.PrintRow(os.Stdout, kinds[n].Name)
		}
	}
}

// labFor returns the lab for a kind.
func labFor(t *testing.T, k lab.Kind, shared sharedLabs) (*lab.Lab, error) {
	switch {
	case k.NeedsNoLab:
		return nil, nil //nolint:nilnil // It gets none.
	case k.Unmarked:
		return newLab(t, plainController)
	case k.NeedsOwnLab:
		return newLab(t, faultsController)
	}
	l, err := shared[k.NeedsPods]()
	if err != nil {
		return nil, err
	}
	return l.With(), nil
}

func explore(ctx context.Context, k lab.Kind, l *lab.Lab) (lab.Result, error) {
	if *caseFlag != "" {
		return k.Replay(ctx, l, *caseFlag)
	}
	r, err := k.Explore(ctx, l, size)
	if err == nil && len(r.Violations) == 0 {
		err = r.CheckExplored()
	}
	return r, err
}

// TestNoTraceInNormalBuild checks that the programs of users contain no crash points, and that the check finds
// them in faultsController.
func TestNoTraceInNormalBuild(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		build func() (string, error)
		want  bool
	}{{plainController, false}, {faultsController, true}} {
		binary, err := c.build()
		assert.NoError(t, err)
		content, err := os.ReadFile(binary)
		assert.NoError(t, err)
		for _, trace := range []string{"internal/crashpoint", "DROVER_CRASHPOINT"} {
			assert.True(t, bytes.Contains(content, []byte(trace)) == c.want, "%s contains %q: %v, want %v", filepath.Base(binary), trace, !c.want, c.want)
		}
	}
}
