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
	"cloudnative.tw/drover/internal/inventory"
)

// probeState is what a readiness probe says of a running server.
type probeState struct {
	wanted, asked, ok bool
	text              string
}

// prober runs the readiness probes of running servers in the background, so
// that no guest holds a worker.
type prober struct {
	ctx   context.Context // ends all probes
	clock clock.WithTicker
	wake  func(types.NamespacedName)

	mu     sync.Mutex
	probes map[types.NamespacedName]*probe
}

// probe is one running probe; target tells when another one is needed.
type probe struct {
	target probeTarget
	stop   context.CancelFunc
	state  probeState
}

type probeTarget struct {
	run, address    string
	period, timeout time.Duration
}

// check returns what the probe says, and starts or stops it as needed.
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
	if len(seen.Server.Addresses) == 0 {
		b.forget(key)
		return probeState{wanted: true, asked: true, text: "readinessProbe: the server has no address"}
	}
	target := targetOf(spec, seen)
	b.mu.Lock()
	defer b.mu.Unlock()
	have := b.probes[key]
	if have == nil || have.target != target {
		have = b.start(key, target)
	}
	return have.state
}

func targetOf(spec *api.Probe, seen inventory.Observation) probeTarget {
	port := strconv.Itoa(int(spec.TCPSocket.Port))
	return probeTarget{
		run: seen.Server.Run, address: net.JoinHostPort(seen.Server.Addresses[0], port),
		period:  max(time.Duration(spec.PeriodSeconds)*time.Second, time.Second),
		timeout: max(time.Duration(spec.TimeoutSeconds)*time.Second, time.Second),
	}
}

// start replaces the probe of a VM; it outlives the pass that starts it. The
// caller holds the lock.
func (b *prober) start(key types.NamespacedName, target probeTarget) *probe {
	if old := b.probes[key]; old != nil {
		old.stop()
	}
	ctx, stop := context.WithCancel(b.ctx)
	next := &probe{target: target, stop: stop, state: probeState{wanted: true, text: "readinessProbe: " + target.address + " was not asked yet"}}
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

// run asks until ctx ends, and wakes the VM at the first answer and when it
// changes.
func (b *prober) run(ctx context.Context, key types.NamespacedName, p *probe) {
	period := b.clock.NewTicker(p.target.period)
	defer period.Stop()
	for {
		b.record(key, p, dial(ctx, p.target))
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

func dial(ctx context.Context, target probeTarget) error {
	dialer := net.Dialer{Timeout: target.timeout}
	conn, err := dialer.DialContext(ctx, "tcp", target.address)
	if err != nil {
		return err
	}
	return conn.Close()
}
