// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apifaults has faults of what controllers see of the API: a single event of a watch
// that is late or missing, lists from the past, and a clock of the API server that steps.
//
// Start with Faults in inject.go: package crash runs workloads with them. A fault occurs at an
// event of a watch, "<type> <resource> <name>#<ordinal>", which a run without faults has shown.
// The injector finds that event in the proxy of a world, and stream.go has the watches. watch.go,
// past.go and clock.go have the faults.
package apifaults

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/lab"
)

// Faults are the faults that may occur at events.
type Faults struct {
	// byName makes a fault of a name.
	byName map[string]func() fault
	// recoveries say whose events these are: of the one replica, or of a standby, whose
	// leader is killed at the fault.
	recoveries []lab.Recovery
	// isWanted reports whether a fault can be at an event.
	isWanted func(event string) bool
}

// Cases implements crash.Source.
func (f Faults) Cases(workload string, events []string) (all []crash.Case) {
	for _, recovery := range f.recoveries {
		of := slices.Clone(events)
		if recovery == lab.ByStandby {
			of = append(slices.DeleteFunc(of, isNotOfStandbys), leaseReleased, leaseTaken)
		}
		for _, event := range of {
			for _, name := range slices.Sorted(maps.Keys(f.byName)) {
				if f.isWanted(event) {
					all = append(all, crash.NewCase(workload, recovery, event, name))
				}
			}
		}
	}
	return all
}

// Watcher implements crash.Source.
func (f Faults) Watcher() crash.Injector { return newInjector(lab.ByRestart, "", noFault{}) }

// Inject implements crash.Source.
func (f Faults) Inject(ctx context.Context, _ *lab.Lab, parallel int, cases []crash.Case, run crash.Run) error {
	return lab.ForEach(ctx, parallel, cases, func(ctx context.Context, c crash.Case) error {
		event, name := c.Fault()
		newFault := f.byName[name]
		if newFault == nil {
			return fmt.Errorf("there is no fault %q", name)
		}
		return run(ctx, c, func() crash.Injector { return newInjector(c.Recovery, event, newFault()) })
	})
}

// The events of the Lease that a standby sees when its leader has been killed at the begin of
// a workload.
const (
	leaseReleased = "MODIFIED leases drover-controller#1"
	leaseTaken    = "MODIFIED leases drover-controller#2"
)

// isNotOfStandbys reports whether an event is one of a replica that starts or leads.
func isNotOfStandbys(event string) bool {
	return strings.HasPrefix(event, "BOOKMARK") || strings.Contains(event, " leases ")
}

// fault is what happens at one event, and from then on.
type fault interface {
	// begin is called when the workload's setup is over.
	begin()
	// roundTrip sends a request of a process on.
	roundTrip(process int, req *http.Request, next http.RoundTripper) (*http.Response, error)
	// occur does what happens in place of the event's delivery. It returns when the fault
	// is over.
	occur(s *stream, e event) error
	// translate changes an event.
	translate(e event) event
}

// noFault injects nothing, and has the parts that others share.
type noFault struct{}

func (noFault) begin() {}

func (noFault) roundTrip(_ int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	return next.RoundTrip(req)
}

func (noFault) occur(s *stream, e event) error { return s.deliver(e) }

func (noFault) translate(e event) event { return e }

// injector is between the processes of a world and the API server.
type injector struct {
	event string
	fault fault
	// process is the number of the one whose event is meant.
	process int

	mu       sync.Mutex
	acting   bool
	replicas *lab.Replicas
	counts   map[string]int // of events since acting, by process
	seen     []string       // events of the first process
	begun    chan struct{}  // closed when the fault occurs
	over     chan struct{}  // closed when it is over
}

func newInjector(recovery lab.Recovery, event string, injected fault) *injector {
	i := &injector{event: event, fault: injected, counts: map[string]int{}, begun: make(chan struct{}), over: make(chan struct{})}
	if recovery == lab.ByStandby {
		i.process = 1
	}
	return i
}

// Prepare implements crash.Injector.
func (i *injector) Prepare(w *lab.World) { w.Intercept(i.roundTrip) }

// calmTime is how long events of the setup may be late.
const calmTime = 200 * time.Millisecond

// Act begins to count events.
func (i *injector) Act(r *lab.Replicas) {
	time.Sleep(calmTime)
	i.mu.Lock()
	i.acting, i.replicas = true, r
	i.mu.Unlock()
	i.fault.begin()
	if i.process == 1 && strings.Contains(i.event, " leases ") {
		_ = r.Replace()
	}
}

// faultTime bounds how long a fault may last.
const faultTime = 15 * time.Second

// Await waits for a fault that comes after the last step, and for the end of one that has
// begun.
func (i *injector) Await(ctx context.Context) {
	if i.fault == (noFault{}) {
		return
	}
	select {
	case <-i.begun:
	case <-time.After(time.Second):
		return
	}
	select {
	case <-i.over:
	case <-time.After(faultTime):
	case <-ctx.Done():
	}
}

// Seen implements crash.Injector.
func (i *injector) Seen() (events []string, hasOccurred bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.seen), isClosed(i.begun)
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// roundTrip implements lab.Interceptor.
func (i *injector) roundTrip(process int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	watches := req.URL.Query().Has("watch")
	if watches {
		req.Header.Set("Accept", "application/json") // which the proxy can read
	}
	res, err := i.fault.roundTrip(process, req, next)
	if err == nil && watches && res.StatusCode == http.StatusOK {
		res.Body = newStream(i, process, path.Base(req.URL.Path), res.Body)
	}
	return res, err
}

// count counts an event of a process, and reports whether the fault happens at it.
func (i *injector) count(process int, resource string, e event) (chosen bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.acting {
		return false
	}
	name := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Type, resource, e.name()))
	key := fmt.Sprintf("%d %s", process, name)
	i.counts[key]++
	name = fmt.Sprintf("%s#%d", name, i.counts[key])
	if process == 0 {
		i.seen = append(i.seen, name)
	}
	return process == i.process && name == i.event && !isClosed(i.begun)
}

// occur has the fault occur at an event.
func (i *injector) occur(s *stream, e event) error {
	close(i.begun)
	defer close(i.over)
	if i.process == 1 && strings.Contains(i.event, " virtualmachines ") {
		i.killLeader()
	}
	return i.fault.occur(s, e)
}

// killLeader kills the first process, as a crash does. Another one goes on.
func (i *injector) killLeader() {
	i.mu.Lock()
	r := i.replicas
	i.mu.Unlock()
	go func() { _ = r.Replace() }()
}
