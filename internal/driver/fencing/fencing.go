// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fencing is a decorator that lets a driver change something only while
// this process has the right to, and passes on the epoch under which it does.
//
// Start with Wrap. It adds
//
//	drover_fenced_calls_total{driver,method}  counter
//
// which counts the calls that an engine refused because a newer epoch has
// acted on it. The gate counts the calls that it refuses itself.
package fencing

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"cloudnative.tw/drover/internal/driver"
)

// Gate grants the right to act.
type Gate interface {
	// Enter begins a call or refuses it. The context that it returns ends when
	// the right does. The caller must call leave at the end of the call.
	Enter(ctx context.Context) (guarded context.Context, epoch uint64, leave func(), err error)
}

// fencedDriver is a driver behind a gate.
type fencedDriver struct {
	driver.Driver
	gate          Gate
	log           logr.Logger
	fencedCalls   *prometheus.CounterVec
	refusalLogged sync.Once // a refused call is logged once
}

// Wrap puts d behind the gate. Several drivers can share a registry; with a nil
// registry the counter is not exposed.
func Wrap(name string, d driver.Driver, gate Gate, log logr.Logger, reg prometheus.Registerer) driver.Driver {
	fenced := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "drover_fenced_calls_total",
		Help: "Calls that an engine refused because a newer epoch has acted on it.",
	}, []string{"driver", "method"})
	if reg != nil {
		if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](reg.Register(fenced)); ok {
			if existing, ok := already.ExistingCollector.(*prometheus.CounterVec); ok {
				fenced = existing
			}
		}
	}
	fenced = fenced.MustCurryWith(prometheus.Labels{"driver": name})
	return &fencedDriver{Driver: d, gate: gate, log: log.WithValues("driver", name), fencedCalls: fenced}
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (g *fencedDriver) Unwrap() driver.Driver { return g.Driver }

// Ensure implements driver.Driver.
func (g *fencedDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (server driver.Server, err error) {
	err = g.guardCall(ctx, "Ensure", func(ctx context.Context, epoch uint64) error {
		spec.Epoch = epoch
		server, err = g.Driver.Ensure(ctx, spec)
		return err
	})
	return server, err
}

// Delete implements driver.Driver.
func (g *fencedDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	return g.guardCall(ctx, "Delete", func(ctx context.Context, epoch uint64) error {
		t.Epoch = epoch
		return g.Driver.Delete(ctx, t, retain)
	})
}

func (g *fencedDriver) guardCall(ctx context.Context, method string, do func(context.Context, uint64) error) error {
	inside, epoch, leave, err := enterGate(ctx, g.gate)
	if err != nil {
		g.refusalLogged.Do(func() {
			g.log.Info("A call was refused because this process does not lead; further ones are counted and not logged", "method", method, "cause", err.Error())
		})
		return driver.Errorf(driver.ErrNotLeading, "nothing was done: %w", err)
	}
	defer leave()
	err = do(inside, epoch)
	if err != nil && inside.Err() != nil && ctx.Err() == nil {
		return driver.Errorf(driver.ErrDeposed, "%w: %v", context.Cause(inside), err)
	}
	if errors.Is(err, driver.ErrFenced) {
		g.fencedCalls.WithLabelValues(method).Inc() // the inventory reports it
	}
	return err
}
