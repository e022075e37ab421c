// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/fleet"
)

const (
	// restartDelay is the time from the end of a process to the start of the next one.
	restartDelay = 200 * time.Millisecond
	// excusedFor is how long after a fault of the API a process may end because of it: a starting
	// process needs answers.
	excusedFor = time.Minute
)

// longLease is so long that it is not lost even on a busy host.
var longLease = []string{"--leader-elect-lease-duration=180s", "--leader-elect-renew-deadline=120s"}

// shortLease lets a standby take over soon. On a busy host the leader may lose it.
var shortLease = []string{
	"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=2s",
	"--leader-elect-retry-period=500ms",
}

// replicas are a leader and a standby, which are started again whenever they end.
type replicas struct {
	*fleet.Fleet
	world *lab.World
	// broken is called when a process has ended by itself, and ends the soak.
	broken  func()
	mayLose bool // whether leaders may lose the Lease

	mu      sync.Mutex
	lost    int       // processes that lost the Lease
	excused int       // other processes that ended because the API was unreachable
	apiBack time.Time // when the API server could be reached again
}

// names are the names of the replicas, in the order of their files.
var names = []string{"replica-0", "replica-1"}

// startReplicas starts two replicas. mayLose says whether they may lose the Lease.
func startReplicas(w *lab.World, e lab.Engine, mayLose bool, broken func()) (*replicas, error) {
	r := &replicas{world: w, mayLose: mayLose, broken: broken}
	lease := longLease
	if mayLose {
		lease = shortLease
	}
	r.Fleet = fleet.New(restartDelay, func(name string, _ int) (fleet.Command, error) {
		n := slices.Index(names, name)
		args, err := w.Args(e, n)
		return fleet.Command{
			Program: w.Program, Env: slices.Concat(w.Variables, e.Variables(w)),
			Args: slices.Concat(args, lease, []string{
				"--usage-period=10s", "--metrics-bind-address=127.0.0.1:0", "--pprof-bind-address=127.0.0.1:0",
			}),
		}, err
	}, r.judgeEnd)
	for _, name := range names {
		if _, err := r.Start(name); err != nil {
			r.end()
			return nil, err
		}
	}
	return r, nil
}

// awaitStart waits until all replicas run: a process that cannot reach the API at its start ends.
func (r *replicas) awaitStart(ctx context.Context) error {
	return assert.Poll(ctx, "all replicas run", func() (err error) {
		for _, name := range names {
			_, metricsErr := r.get(ctx, name, "/metrics")
			err = errors.Join(err, metricsErr)
		}
		return err
	})
}

// get requests a path from a replica.
func (r *replicas) get(ctx context.Context, name, path string) ([]byte, error) {
	p := r.Running()[name]
	if p == nil {
		return nil, fmt.Errorf("%s does not run", name)
	}
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	return p.Get(ctx, path)
}

// judgeEnd records a failure if a process has ended without a known cause.
func (r *replicas) judgeEnd(p *fleet.Process) (again bool) {
	text, err, signal := p.Output(), p.Wait(context.Background()), p.EndedBy()
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case signal == syscall.SIGKILL, signal == syscall.SIGTERM && err == nil:
	case r.mayLose && strings.Contains(text, leader.ErrLost.Error()):
		r.lost++
	case r.mayLose && time.Since(r.apiBack) < excusedFor && !strings.Contains(text, "\ngoroutine "):
		r.excused++
	default:
		r.Fail(fmt.Sprintf("%s, process %d: %v: %s", p.Replica, p.PID(), err, text[max(0, len(text)-4000):]))
		r.broken()
	}
	return true
}

// excuseUntil allows processes to end because they cannot reach the API server until a time, and excusedFor after it.
func (r *replicas) excuseUntil(back time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.apiBack = back
}

// leading returns the process of the replica that holds the Lease, and the other process. A process
// that does not run is nil.
func (r *replicas) leading(ctx context.Context) (leader, standby *fleet.Process, err error) {
	name, _, err := r.world.Lease().Holder(ctx)
	running := r.Running()
	if name == names[1] {
		return running[names[1]], running[names[0]], err
	}
	return running[names[0]], running[names[1]], err
}

// end stops both replicas by SIGTERM, so that the leader releases the Lease.
func (r *replicas) end() { r.Stop(syscall.SIGTERM) }

// evidence returns the evidence so far.
func (r *replicas) evidence(e lab.Engine) lab.Evidence {
	return lab.Evidence{
		Engine: e, Processes: r.Processes(), Output: r.Output(), Failures: r.Failures(),
	}
}
