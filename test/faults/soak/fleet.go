// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/history"
	"cloudnative.tw/drover/test/framework/users"
)

const (
	// restartDelay is the time from the end of a process to the start of the next one.
	restartDelay = 200 * time.Millisecond
	// excusedFor is how long after a fault of the API a process may end because of it: at its
	// start it needs answers.
	excusedFor = time.Minute
)

// longLease is not lost, even on a machine with much else to do.
var longLease = []string{"--leader-elect-lease-duration=180s", "--leader-elect-renew-deadline=120s", "--leader-elect-request-timeout=20s"}

// shortLease lets a standby take over soon. On a busy machine its leader may lose it.
var shortLease = []string{
	"--leader-elect-lease-duration=5s", "--leader-elect-renew-deadline=2s",
	"--leader-elect-retry-period=500ms", "--leader-elect-request-timeout=500ms", "--leader-elect-margin=500ms",
}

// fleet is a leader and a standby, which are started again whenever they end.
type fleet struct {
	world    *lab.World
	replicas []*replica
	stop     context.CancelFunc
	ended    sync.WaitGroup

	// broken is called when a process has ended by itself. Nothing has to be waited for then.
	broken func()

	mu       sync.Mutex
	failures []string
	lost     int       // how many processes have lost the Lease
	excused  int       // how many others have ended without the API
	apiBack  time.Time // when the API server could be reached again
	mayLose  bool      // the Lease
}

// replica is one of the two.
type replica struct {
	name, metrics, pprof string
	args, env            []string

	mu      sync.Mutex
	process *framework.Process // nil between two
	signal  syscall.Signal     // that ends the process
	history []history.Process
	output  strings.Builder // of processes that have ended
}

// startFleet starts two replicas, which may lose the Lease or not.
func startFleet(ctx context.Context, w *lab.World, e lab.Engine, mayLose bool, broken func()) (*fleet, error) {
	f := &fleet{world: w, mayLose: mayLose, broken: broken}
	ctx, f.stop = context.WithCancel(ctx)
	for n := range 2 {
		r := &replica{name: fmt.Sprintf("replica-%d", n)}
		r.env = slices.Concat(w.Environment, e.Environment(w), []string{"POD_NAME=" + r.name})
		args, err := w.Args(e, n)
		if err := errors.Join(err, r.findAddresses(ctx)); err != nil {
			return nil, err
		}
		r.args = slices.Concat(args, []string{w.RecordDecisions(n), "--usage-period=10s", "--metrics-bind-address=" + r.metrics, "--pprof-bind-address=" + r.pprof})
		if mayLose {
			r.args = append(r.args, shortLease...)
		} else {
			r.args = append(r.args, longLease...)
		}
		f.replicas = append(f.replicas, r)
		f.ended.Go(func() { f.supervise(ctx, r) })
	}
	return f, nil
}

// awaitStart waits until all replicas run: a process that starts without the API ends.
func (f *fleet) awaitStart(ctx context.Context) error {
	return assert.Poll(ctx, "all replicas run", func() (err error) {
		for _, r := range f.replicas {
			_, metricsErr := get(ctx, "http://"+r.metrics+"/metrics")
			err = errors.Join(err, metricsErr)
		}
		return err
	})
}

// findAddresses finds free ports of an address that programs do not connect from, so that
// they stay free while no process runs.
func (r *replica) findAddresses(ctx context.Context) error {
	var free []string
	for range 2 {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.3:0")
		if err != nil {
			return err
		}
		defer func() { _ = listener.Close() }()
		free = append(free, listener.Addr().String())
	}
	r.metrics, r.pprof = free[0], free[1]
	return nil
}

// supervise runs one process after the other until ctx ends.
func (f *fleet) supervise(ctx context.Context, r *replica) {
	for ; ctx.Err() == nil; users.Sleep(ctx, restartDelay) {
		p, err := r.start(f.world.Program)
		if err != nil {
			f.fail(err.Error())
			return
		}
		stop := context.AfterFunc(ctx, func() { _ = p.Stop() }) // which releases the Lease
		for !p.HasEnded() {
			_ = p.Wait(time.Hour)
		}
		stop()
		f.judgeEnd(r, p)
	}
}

func (r *replica) start(program string) (*framework.Process, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	from := time.Now()
	p, err := framework.StartProcess(program, r.args, r.env)
	if err != nil {
		return nil, err
	}
	r.process, r.signal = p, 0
	r.history = append(r.history, history.Process{Replica: r.name, PID: p.PID(), From: from})
	return p, nil
}

// send signals the process of a replica. One that ends by it has not ended by itself.
func (r *replica) send(s syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil || r.process.HasEnded() {
		return nil
	}
	if s == syscall.SIGKILL || s == syscall.SIGTERM {
		r.signal = s
	}
	if err := syscall.Kill(r.process.PID(), s); !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return nil
}

// judgeEnd records the end of a process, and whether something had ended it.
func (f *fleet) judgeEnd(r *replica, p *framework.Process) {
	text, err := p.TakeOutput(), p.Wait(time.Second)
	r.mu.Lock()
	r.process, r.history[len(r.history)-1].To = nil, time.Now()
	fmt.Fprintf(&r.output, "%s\n=== %s, process %d: %v\n", text, r.name, p.PID(), err)
	signal := r.signal
	r.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case signal == syscall.SIGKILL, signal == syscall.SIGTERM && err == nil:
	case f.mayLose && strings.Contains(text, leader.ErrLost.Error()):
		f.lost++
	case f.mayLose && time.Since(f.apiBack) < excusedFor && !strings.Contains(text, "\ngoroutine "):
		f.excused++
	default:
		f.failures = append(f.failures, fmt.Sprintf("%s, process %d: %v: %s", r.name, p.PID(), err, text[max(0, len(text)-4000):]))
		f.broken()
	}
}

func (f *fleet) fail(text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failures = append(f.failures, text)
	f.broken()
}

// excuseUntil lets processes end that cannot reach the API server.
func (f *fleet) excuseUntil(back time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.apiBack = back
}

// leading returns the replica that has the Lease, and the other one.
func (f *fleet) leading(ctx context.Context) (leads, stands *replica, err error) {
	name, err := f.world.Leader(ctx)
	leads, stands = f.replicas[0], f.replicas[1]
	if name == stands.name {
		leads, stands = stands, leads
	}
	return leads, stands, err
}

// end stops both.
func (f *fleet) end() {
	f.stop()
	f.ended.Wait()
}

// evidence returns what is to be judged, and keeps it.
func (f *fleet) evidence(e lab.Engine) lab.Evidence {
	f.mu.Lock()
	evidence := lab.Evidence{Engine: e, Failures: slices.Clone(f.failures), Decisions: f.world.Decisions(len(f.replicas))}
	f.mu.Unlock()
	for _, r := range f.replicas {
		r.mu.Lock()
		evidence.Processes = append(evidence.Processes, r.history...)
		evidence.Output += r.output.String()
		if r.process != nil {
			evidence.Output += r.process.Output()
		}
		r.mu.Unlock()
	}
	return evidence
}

// forget drops what was printed and decided.
func (f *fleet) forget() error {
	for _, r := range f.replicas {
		r.mu.Lock()
		r.output.Reset()
		if r.process != nil {
			_ = r.process.TakeOutput()
		}
		r.mu.Unlock()
	}
	return f.world.ForgetDecisions(len(f.replicas))
}
