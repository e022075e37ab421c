// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// probeState is the result of a readiness probe of a running server.
type probeState struct {
	wanted, asked, ok bool
	text              string
}

// prober runs the readiness probes of running servers in the background, so that no
// guest blocks a worker.
type prober struct {
	ctx    context.Context // ends all probes
	clock  clock.WithTicker
	driver driver.Prober // nil if servers are probed at their own addresses
	wake   func(types.NamespacedName)

	mu     sync.Mutex
	probes map[types.NamespacedName]*probe
}

// probe is one running probe. It is replaced when the target changes.
type probe struct {
	target probeTarget
	stop   context.CancelFunc
	state  probeState
}

// probeTarget is a port of a server's run. The address is empty if the driver
// probes.
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

// check returns the probe's result, and starts or stops the probe as needed.
func (b *prober) check(vm *api.VirtualMachine, seen inventory.Observation) probeState {
	if b == nil {
		return probeState{}
	}
	key, spec := keyOf(vm), vm.Spec.ReadinessProbe
	if spec != nil && seen.Answer == inventory.Unknown {
		return probeState{wanted: true, text: "the engine cannot be asked"}
	}
	if spec == nil || !isUp(seen) || vm.DeletionTimestamp != nil {
		b.forget(key)
		return probeState{wanted: spec != nil, asked: true, text: "the server does not run"}
	}
	if b.driver == nil && len(seen.Server.Addresses) == 0 {
		b.forget(key)
		return probeState{wanted: true, asked: true, text: "readinessProbe: the server has no address"}
	}
	target := b.targetOf(spec, seen)
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.probes[key]
	if have == nil || have.target != target {
		have = b.start(key, target)
	}
	return have.state
}

func (b *prober) targetOf(spec *api.Probe, seen inventory.Observation) probeTarget {
	target := probeTarget{
		uid: seen.Server.UID, run: seen.Server.Run, port: spec.TCPSocket.Port,
		period:  max(time.Duration(spec.PeriodSeconds)*time.Second, time.Second),
		timeout: max(time.Duration(spec.TimeoutSeconds)*time.Second, time.Second),
	}
	if b.driver == nil {
		target.address = net.JoinHostPort(seen.Server.Addresses[0], strconv.Itoa(int(target.port)))
	}
	return target
}

// start replaces the probe of a VM; it outlives the pass that starts it. The caller
// holds the lock.
func (b *prober) start(key types.NamespacedName, target probeTarget) *probe {
	if old := b.probes[key]; old != nil {
		old.stop()
	}
	ctx, stop := context.WithCancel(b.ctx)
	next := &probe{target: target, stop: stop, state: probeState{wanted: true, text: "readinessProbe: " + target.String() + " was not asked yet"}}
	b.probes[key] = next
	go b.run(ctx, key, next)
	return next
}

func (b *prober) forget(key types.NamespacedName) {
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

// run probes until ctx ends. It wakes the VM at the first result and at each
// change.
func (b *prober) run(ctx context.Context, key types.NamespacedName, p *probe) {
	period := b.clock.NewTicker(p.target.period)
	defer period.Stop()
	for {
		b.record(key, p, b.ask(ctx, p.target))
		select {
		case <-ctx.Done():
			return
		case <-period.C():
		}
	}
}

func (b *prober) record(key types.NamespacedName, p *probe, err error) {
	state := probeState{wanted: true, asked: true, ok: err == nil}
	if err != nil {
		state.text = fmt.Sprintf("readinessProbe: %v", err)
	}
	b.mu.Lock()
	changed := p.state.ok != state.ok || !p.state.asked
	p.state = state
	b.mu.Unlock()
	if changed {
		b.wake(key)
	}
}

func (b *prober) ask(ctx context.Context, target probeTarget) error {
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
