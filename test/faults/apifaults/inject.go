// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

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

	"cloudnative.tw/drover/test/faults/lab"
)

// Faults are what may happen at events.
type Faults struct {
	// byName makes a fault of a name.
	byName map[string]func() fault
	// recoveries say whose events these are: of the one replica, or of a standby, whose
	// leader is killed at the fault.
	recoveries []lab.Recovery
	// isWanted reports whether a fault can be at an event.
	isWanted func(event string) bool
	// ofLeader is set if the events are those of the one that leads, whoever goes on.
	ofLeader bool
}

func (f Faults) newFault(name string) fault {
	if of, ok := f.byName[name]; ok {
		return of()
	}
	return noFault{}
}

// cases returns all cases of the events of a workload.
func (f Faults) cases(workload string, events []string) []testCase {
	var all []testCase
	for _, recovery := range f.recoveries {
		of := slices.Clone(events)
		if recovery == lab.ByStandby && !f.ofLeader {
			of = append(slices.DeleteFunc(of, isNotOfStandbys), leaseReleased, leaseTaken)
		}
		for _, event := range of {
			for _, name := range slices.Sorted(maps.Keys(f.byName)) {
				if f.isWanted(event) {
					all = append(all, testCase{workload, recovery, event, name})
				}
			}
		}
	}
	return all
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

// noFault is none, and what others have in common.
type noFault struct{}

func (noFault) begin() {}

func (noFault) roundTrip(_ int, req *http.Request, next http.RoundTripper) (*http.Response, error) {
	return next.RoundTrip(req)
}

func (noFault) occur(s *stream, e event) error { return s.deliver(e) }

func (noFault) translate(e event) event { return e }

// injector is between the processes of a world and the API server.
type injector struct {
	testCase
	fault    fault
	ofLeader bool

	mu       sync.Mutex
	acting   bool
	replicas *lab.Replicas
	counts   map[string]int // of events since acting, by process
	learned  []string       // events of the first process
	begun    chan struct{}  // closed when the fault occurs
	over     chan struct{}  // closed when it is over
}

func newInjector(c testCase, f fault) *injector {
	return &injector{testCase: c, fault: f, counts: map[string]int{}, begun: make(chan struct{}), over: make(chan struct{})}
}

// calmTime is how long events of the setup may be late.
const calmTime = 200 * time.Millisecond

// act begins to count events.
func (i *injector) act(r *lab.Replicas) {
	time.Sleep(calmTime)
	i.mu.Lock()
	i.acting, i.replicas = true, r
	i.mu.Unlock()
	i.fault.begin()
	if i.target() == 1 && strings.Contains(i.event, " leases ") {
		_ = r.Replace()
	}
}

// target is the number of the process whose event is meant.
func (i *injector) target() int {
	if i.recovery == lab.ByStandby && !i.ofLeader {
		return 1
	}
	return 0
}

// faultTime bounds how long a fault may last.
const faultTime = 15 * time.Second

// await waits for a fault that comes after the last step, and for the end of one that has
// begun.
func (i *injector) await(ctx context.Context) {
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

func (i *injector) hasOccurred() bool { return isClosed(i.begun) }

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (i *injector) learnedEvents() []string {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.learned)
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

// count counts an event of a process, and reports whether it is that of the fault.
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
		i.learned = append(i.learned, name)
	}
	return process == i.target() && name == i.event && !isClosed(i.begun)
}

// occur has the fault occur at an event.
func (i *injector) occur(s *stream, e event) error {
	close(i.begun)
	defer close(i.over)
	if i.target() == 1 && strings.Contains(i.event, " virtualmachines ") {
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
