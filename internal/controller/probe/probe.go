// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package probe runs the readiness probes of servers in the background.
package probe

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// Prober runs the readiness probes of running servers in the background, so that no
// guest blocks a worker.
type Prober struct {
	ctx     context.Context // ends all probes
	clock   clock.WithTicker
	driver  driver.Prober // nil if the Prober itself connects to the addresses of servers
	requeue func(types.NamespacedName)

	mu     sync.Mutex
	probes map[types.NamespacedName]*probe
}

// New returns a Prober whose probes end with ctx. If driver is nil, the Prober itself
// connects to the addresses of servers. requeue is called at the first result of a
// probe and at each change of the result.
func New(ctx context.Context, clock clock.WithTicker, driver driver.Prober, requeue func(types.NamespacedName)) *Prober {
	return &Prober{ctx: ctx, clock: clock, driver: driver, requeue: requeue, probes: map[types.NamespacedName]*probe{}}
}

// probe is a running probe. A new probe replaces it when the target changes.
type probe struct {
	target probeTarget
	stop   context.CancelFunc
	state  policy.ProbeResult
}

// probeTarget is a port of a server in one run. The address is empty if the driver connects to the port.
type probeTarget struct {
	uid             types.UID
	run, address    string
	port            int32
	period, timeout time.Duration
}

func (t probeTarget) String() string {
	if t.address != "" {
		return t.address
	}
	return fmt.Sprintf("port %d", t.port)
}

// Check returns the last result of a VirtualMachine's probe, and starts or stops the probe as needed.
func (b *Prober) Check(vm *api.VirtualMachine, observed inventory.Observation) policy.ProbeResult {
	if b == nil {
		return policy.ProbeResult{}
	}
	key, spec := client.ObjectKeyFromObject(vm), vm.Spec.ReadinessProbe
	if spec != nil && observed.Answer == inventory.Unknown {
		return policy.ProbeResult{Wanted: true, Message: "the engine cannot be queried"}
	}
	if spec == nil || !observed.IsRunning() || vm.DeletionTimestamp != nil {
		b.Forget(key)
		return policy.ProbeResult{Wanted: spec != nil, Completed: true, Message: "the server does not run"}
	}
	if b.driver == nil && len(observed.Server.Addresses) == 0 {
		b.Forget(key)
		return policy.ProbeResult{Wanted: true, Completed: true, Message: "readinessProbe: the server does not have an address"}
	}
	target := b.targetOf(spec, observed)
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.probes[key]
	if have == nil || have.target != target {
		have = b.startProbe(key, target)
	}
	return have.state
}

func (b *Prober) targetOf(spec *api.Probe, observed inventory.Observation) probeTarget {
	target := probeTarget{
		uid: observed.Server.UID, run: observed.Server.Run, port: spec.TCPSocket.Port,
		period:  max(time.Duration(spec.PeriodSeconds)*time.Second, time.Second),
		timeout: max(time.Duration(spec.TimeoutSeconds)*time.Second, time.Second),
	}
	if b.driver == nil {
		target.address = net.JoinHostPort(observed.Server.Addresses[0], strconv.Itoa(int(target.port)))
	}
	return target
}

// startProbe starts a probe in place of the VM's present probe. The new probe outlives the
// pass that starts it. The caller holds the lock.
func (b *Prober) startProbe(key types.NamespacedName, target probeTarget) *probe {
	if old := b.probes[key]; old != nil {
		old.stop()
	}
	ctx, stop := context.WithCancel(b.ctx)
	next := &probe{target: target, stop: stop, state: policy.ProbeResult{Wanted: true, Message: "readinessProbe: " + target.String() + " was not probed yet"}}
	b.probes[key] = next
	go b.runProbe(ctx, key, next)
	return next
}

// Forget ends the probe of a VirtualMachine.
func (b *Prober) Forget(key types.NamespacedName) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old := b.probes[key]; old != nil {
		old.stop()
		delete(b.probes, key)
	}
}

// runProbe probes until ctx ends. It requeues the VirtualMachine at the first result and
// at each change of the result.
func (b *Prober) runProbe(ctx context.Context, key types.NamespacedName, p *probe) {
	period := b.clock.NewTicker(p.target.period)
	defer period.Stop()
	for {
		b.recordResult(key, p, b.probeOnce(ctx, p.target))
		select {
		case <-ctx.Done():
			return
		case <-period.C():
		}
	}
}

func (b *Prober) recordResult(key types.NamespacedName, p *probe, err error) {
	state := policy.ProbeResult{Wanted: true, Completed: true, OK: err == nil}
	if err != nil {
		state.Message = fmt.Sprintf("readinessProbe: %v", err)
	}
	b.mu.Lock()
	changed := p.state.OK != state.OK || !p.state.Completed
	p.state = state
	b.mu.Unlock()
	if changed {
		b.requeue(key)
	}
}

func (b *Prober) probeOnce(ctx context.Context, target probeTarget) error {
	ctx, cancel := context.WithTimeout(ctx, target.timeout)
	defer cancel()
	if b.driver != nil {
		return b.driver.Probe(ctx, target.uid, target.port)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", target.address)
	if err != nil {
		return err
	}
	return conn.Close()
}
