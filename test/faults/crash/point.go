// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crash kills controllers at every point of a workload, before or after each request,
// driver call and file write, and checks that another process continues as if nothing had
// happened. Instead of a crash a request or a call may have another fault.
//
// Start with Kind in explore.go. workload.go has the workloads, run.go runs one of them
// with one crash or two, and point.go has the names of points and cases.
package crash

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"

	"cloudnative.tw/drover/test/faults/lab"
)

// The moments at which a process crashes.
const (
	before = "before"
	after  = "after"
)

// crashPoint is "<operation> <object>#<ordinal>/before" or "/after": a point, and the moment
// of the crash. Instead of the moment it may have the name of another fault.
type crashPoint string

// Case is a workload with the faults of its processes.
type Case struct {
	// Workload is "<workload>/<engine>".
	Workload string
	Recovery lab.Recovery
	// crashes are the faults of the first process, the second and so on.
	crashes []crashPoint
}

// String returns the case's name, by which it can be replayed:
// create/fake/standby/PUT virtualmachines.status vm-1#1/after.
func (c Case) String() string {
	parts := []string{c.Workload, string(c.Recovery)}
	for _, p := range c.crashes {
		parts = append(parts, string(p))
	}
	return strings.Join(parts, "/")
}

// parseCase reads a case's name.
func parseCase(name string) (Case, error) {
	parts := strings.Split(name, "/")
	if len(parts) < 3 || len(parts)%2 == 0 {
		return Case{}, fmt.Errorf("%q is not a case: it must be <workload>/<engine>/<recovery> and for each crash /<point>/before or after", name)
	}
	c := Case{Workload: parts[0] + "/" + parts[1], Recovery: lab.Recovery(parts[2])}
	for n := 3; n < len(parts); n += 2 {
		c.crashes = append(c.crashes, crashPoint(parts[n]+"/"+parts[n+1]))
	}
	return c, nil
}

// The prefixes of lines about the begin and the end of a fault other than a crash. Only faults
// that last have an end.
const begins, ends = "!", "."

// readPoints returns what a process has recorded, in order: its points, the faults other than
// crashes that have begun, and those that have ended.
func readPoints(path string) (points, begun, ended []string, err error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, nil
	}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSuffix(line, "\n")
		if fault, ok := strings.CutPrefix(line, begins); ok {
			begun = append(begun, fault)
		} else if fault, ok := strings.CutPrefix(line, ends); ok {
			ended = append(ended, fault)
		} else {
			points = append(points, line)
		}
	}
	return points, begun, ended, err
}

// unstable matches points whose number depends on how long a run takes: renewals of the Lease,
// and the regular lists of an engine and reads of its ID.
var unstable = regexp.MustCompile(`^((PUT|GET) leases .*#([2-9]|\d{2,})|.*\.(List all|EngineID engine|Usage all)#([4-9]|\d{2,})|(GET namespaces kube-system|docker read .*)#\d{2,})$`)

// Faults returns the faults that a point may have, if any.
type Faults func(point string) []string

// crashes returns the moments of a crash. Requests that only read from Docker have none, as a
// crash at the driver's call has the same effect.
func crashes(point string) []string {
	if strings.HasPrefix(point, dockerRead) {
		return nil
	}
	return []string{before, after}
}

func crashesOfMutations(point string) []string {
	if isMutation(point) {
		return crashes(point)
	}
	return nil
}

// Answers returns the bad answers that a request may get instead of the API server's: see
// badAnswers in cmd/drover-controller/app.
func Answers(point string) []string {
	if !isRequest(point) {
		return nil
	}
	return []string{"409", "410", "429", "500", "504 after", "cut off", "cut off after"}
}

// hangs is the fault of a call that ends only with its context, and late that of a call that
// is carried out later.
const hangs, late = "hangs", "late"

// lasts reports whether a fault lasts until its end is recorded.
func lasts(fault string) bool {
	return strings.HasSuffix(fault, "/"+hangs) || strings.HasSuffix(fault, "/"+late)
}

// Calls returns the faults of a call to a driver, the Docker Engine, QEMU or its supervisor: see callFaults in
// internal/crashpoint. A Watch cannot time out, as it is without a deadline. Hanging, which takes Drover's 30 s,
// is not among the first two faults of mutations, which the gate tries.
func Calls(point string) []string {
	switch {
	case !calls.MatchString(point):
		return nil
	case strings.Contains(point, ".Watch "):
		return []string{"fails"}
	case !isMutation(point):
		return []string{"fails", "cut off", hangs}
	}
	return []string{"times out after", late, "twice", hangs, "fails", "cut off after", "cut off"}
}

// The prefixes of requests that read from Docker, of commands to QEMU, and of calls to its supervisor.
const dockerRead, qmp, toSupervisor = "docker read ", "QMP ", "machine "

// calls matches the points that are calls.
var calls = regexp.MustCompile(`^(QMP|machine|docker|docker read|[a-z]+\.(Ensure|Delete|List|Usage|Watch|EngineID|FileRevisions|WriteFiles)) `)

// isRequest reports whether a point is a request to the API server that can have faults.
// Requests for Leases cannot, because losing its Lease ends a process. Events cannot, because
// client-go sends them again only after 10 s, when the world should be at rest.
func isRequest(point string) bool {
	_, rest, _ := strings.Cut(point, " ")
	resource, _, _ := strings.Cut(rest, " ")
	return isOfAPI(point) && resource != "leases" && resource != "events"
}

// isOfAPI reports whether a point is any request to the API server.
func isOfAPI(point string) bool {
	verb, _, _ := strings.Cut(point, " ")
	return slices.Contains([]string{"GET", "PUT", "POST", "PATCH", "DELETE", "WATCH"}, verb)
}

// isMutation reports whether a point changes something outside of the process.
func isMutation(point string) bool {
	return !reads.MatchString(point)
}

var reads = regexp.MustCompile(`^(GET |WATCH |docker read |QMP (query-|qom-get)|[a-z]+\.(List|Usage|Watch|EngineID|FileRevisions) )`)
