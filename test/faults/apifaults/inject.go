// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apifaults disturbs what controllers see of the API: a single event of a watch arrives late
// or never, lists are old, or the clock of the API server steps.
//
// Start with Faults in inject.go: package crash runs workloads with them. A fault occurs at one
// event of a watch. The names of events, "<type> <resource> <name>#<ordinal>", come from a run
// without faults. The injector sees the events in the proxy between the processes of a lab.World and
// the API server. stream.go has the watches; watch.go, past.go and clock.go have the faults.
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
	// constructors has the constructor of each fault, by the fault's name.
	constructors map[string]func() fault
	// recoveries says at whose events faults can occur: with ByRestart at those of the only
	// replica, with ByStandby at those of a standby whose leader is killed.
	recoveries []lab.Recovery
	// isWanted reports whether a fault can occur at an event.
	isWanted func(event string) bool
}

// Cases implements crash.Source.
func (f Faults) Cases(workload string, events []string) (all []crash.Case) {
	for _, recovery := range f.recoveries {
		candidates := slices.Clone(events)
		if recovery == lab.ByStandby {
			candidates = append(slices.DeleteFunc(candidates, isNotOfStandbys), leaseReleased, leaseTaken)
		}
		for _, event := range candidates {
			for _, name := range slices.Sorted(maps.Keys(f.constructors)) {
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
		newFault := f.constructors[name]
		if newFault == nil {
			return fmt.Errorf("there is no fault %q", name)
		}
		return run(ctx, c, func() crash.Injector { return newInjector(c.Recovery, event, newFault()) })
	})
}

// The events of the Lease that a standby sees when its leader is killed at the begin of a
// workload.
const (
	leaseReleased = "MODIFIED leases drover-controller#1"
	leaseTaken    = "MODIFIED leases drover-controller#2"
)

// isNotOfStandbys reports whether only a replica that starts or leads sees an event.
func isNotOfStandbys(event string) bool {
	return strings.HasPrefix(event, "BOOKMARK") || strings.Contains(event, " leases ")
}

// fault is a fault that occurs at one event.
type fault interface {
	// begin is called when the workload's setup is over.
	begin()
	// roundTrip forwards a request of the process with this number.
	roundTrip(process int, req *http.Request, next http.RoundTripper) (*http.Response, error)
	// occur is called instead of delivering the event. It returns when the fault is over.
	occur(s *stream, e event) error
	// translate changes an event.
	translate(e event) event
}

// noFault injects nothing. Other faults embed it.
type noFault struct{}

func (noFault) begin() {}

func (noFault) roundTrip(_ int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	return next.RoundTrip(req)
}

func (noFault) occur(s *stream, e event) error { return s.deliver(e) }

func (noFault) translate(e event) event { return e }

const (
	firstProcess   = iota // the number of a world's first process
	standbyProcess        // the number of the standby's first process
)

// injector is between the processes of a world and the API server.
type injector struct {
	event string
	fault fault
	// process is the number of the process at whose event the fault occurs.
	process int

	mu       sync.Mutex
	counting bool
	replicas *lab.Replicas
	counts   map[string]int // events since counting was set, by process and name
	seen     []string       // events of the first process
	begun    chan struct{}  // closed when the fault occurs
	over     chan struct{}  // closed when it is over
}

func newInjector(recovery lab.Recovery, event string, injected fault) *injector {
	i := &injector{event: event, fault: injected, counts: map[string]int{}, begun: make(chan struct{}), over: make(chan struct{})}
	if recovery == lab.ByStandby {
		i.process = standbyProcess
	}
	return i
}

// Prepare implements crash.Injector.
func (i *injector) Prepare(w *lab.World) { w.Intercept(i.intercept) }

// calmTime is how late events of the setup may arrive.
const calmTime = 200 * time.Millisecond

// Act begins to count events.
func (i *injector) Act(r *lab.Replicas) {
	time.Sleep(calmTime)
	i.mu.Lock()
	i.counting, i.replicas = true, r
	i.mu.Unlock()
	i.fault.begin()
	if i.process == standbyProcess && strings.Contains(i.event, " leases ") {
		_ = r.KillFirst() // causes the standby's events of the Lease
	}
}

// faultTime bounds how long a fault may last.
const faultTime = 15 * time.Second

// Await waits for the end of the fault. If the fault has not begun when the workload ends, Await
// waits a second for it to begin.
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

// intercept implements lab.Interceptor.
func (i *injector) intercept(process int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	watches := req.URL.Query().Has("watch")
	if watches {
		req.Header.Set("Accept", "application/json") // stream decodes JSON, not protobuf
	}
	res, err := i.fault.roundTrip(process, req, next)
	if err == nil && watches && res.StatusCode == http.StatusOK {
		res.Body = newStream(i, process, path.Base(req.URL.Path), res.Body)
	}
	return res, err
}

// count counts an event of a process, and reports whether the fault occurs at it.
func (i *injector) count(process int, resource string, e event) (chosen bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.counting {
		return false
	}
	name := strings.TrimSpace(fmt.Sprintf("%s %s %s", e.Type, resource, e.name()))
	key := fmt.Sprintf("%d %s", process, name)
	i.counts[key]++
	name = fmt.Sprintf("%s#%d", name, i.counts[key])
	if process == firstProcess {
		i.seen = append(i.seen, name)
	}
	return process == i.process && name == i.event && !isClosed(i.begun)
}

// occur runs the fault. If it is at a standby's event of a VirtualMachine, occur also kills the leader.
func (i *injector) occur(s *stream, e event) error {
	close(i.begun)
	defer close(i.over)
	if i.process == standbyProcess && strings.Contains(i.event, " virtualmachines ") {
		i.killLeader()
	}
	return i.fault.occur(s, e)
}

// killLeader kills the first process, and does not wait for its end.
func (i *injector) killLeader() {
	i.mu.Lock()
	r := i.replicas
	i.mu.Unlock()
	go func() { _ = r.KillFirst() }()
}
