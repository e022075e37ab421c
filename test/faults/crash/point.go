// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash ends controllers by SIGKILL at every point of a workload, before or after
// each request, driver call and file write, and checks that another process goes on as if
// nothing had happened.
//
// Start with Kind in explore.go. workload.go has the workloads, run.go runs one of them
// with one crash or two, and point.go has the names of points and cases.
package crash

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"cloudnative.tw/drover/test/faults/lab"
)

// The moments at which a process ends.
const (
	before = "before"
	after  = "after"
)

// crashPoint is a moment at a point: "<operation> <object>#<ordinal>/before" or after.
type crashPoint string

// testCase is a workload with the points at which its processes end.
type testCase struct {
	workload string
	recovery lab.Recovery
	// crashes are the points of the first process, the second and so on.
	crashes []crashPoint
}

// String returns the case's name, by which it can be replayed:
// create/fake/standby/PUT virtualmachines.status vm-1#1/after.
func (c testCase) String() string {
	parts := []string{c.workload, string(c.recovery)}
	for _, p := range c.crashes {
		parts = append(parts, string(p))
	}
	return strings.Join(parts, "/")
}

// parseCase reads a case's name.
func parseCase(name string) (testCase, error) {
	parts := strings.Split(name, "/")
	if len(parts) < 3 || len(parts)%2 == 0 {
		return testCase{}, fmt.Errorf("%q is no case: it must be <workload>/<engine>/<recovery> and for each crash /<point>/before or after", name)
	}
	c := testCase{workload: parts[0] + "/" + parts[1], recovery: lab.Recovery(parts[2])}
	for n := 3; n < len(parts); n += 2 {
		c.crashes = append(c.crashes, crashPoint(parts[n]+"/"+parts[n+1]))
	}
	return c, nil
}

// readPoints returns the points that a process has recorded, in order.
func readPoints(path string) ([]string, error) {
	lines, err := readLines(path)
	return slices.DeleteFunc(lines, isFault), err
}

// countFaults returns how many faults other than crashes a process has recorded.
func countFaults(path string) (int, error) {
	lines, err := readLines(path)
	return len(slices.DeleteFunc(lines, func(line string) bool { return !isFault(line) })), err
}

func isFault(line string) bool { return strings.HasPrefix(line, "!") }

func readLines(path string) ([]string, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var all []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		all = append(all, lines.Text())
	}
	return all, lines.Err()
}

// unstable are points whose number depends on the time that a run takes: renewals, and
// the regular lists of an engine.
var unstable = regexp.MustCompile(`^((PUT|GET) leases .*#([2-9]|\d{2,})|.*\.(List all|EngineID engine)#([4-9]|\d{2,}))$`)

// answers are what may be answered to a request instead of what the API server answers:
// see badAnswers in cmd/drover-controller/app.
var answers = []string{"409", "410", "429", "500", "504 after", "cut off", "cut off after"}

// isRequest reports whether a point is a request to the API server whose answer matters
// here: the loss of a Lease ends a process, and client-go sends an event again only 10 s
// later, when all should be at rest.
func isRequest(point string) bool {
	verb, rest, _ := strings.Cut(point, " ")
	resource, _, _ := strings.Cut(rest, " ")
	return slices.Contains([]string{"GET", "PUT", "POST", "PATCH", "DELETE", "WATCH"}, verb) && resource != "leases" && resource != "events"
}

// isMutation reports whether a point changes something outside of the process.
func isMutation(point string) bool {
	for _, read := range []string{"GET ", "WATCH "} {
		if strings.HasPrefix(point, read) {
			return false
		}
	}
	return !strings.Contains(point, ".List ") && !strings.Contains(point, ".EngineID ")
}
