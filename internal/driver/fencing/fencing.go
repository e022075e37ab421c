// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fencing is a decorator that lets a driver change servers only while
// this process is the leader, and gives each such call the leader's epoch.
//
// Start with Wrap. It adds
//
//	drover_fenced_calls_total{driver,method}  counter
//
// which counts the calls that an engine refused because a leader with a newer
// epoch has acted on it. The gate counts the calls that the gate refuses.
package fencing

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"cloudnative.tw/drover/internal/driver"
)

// Gate admits calls while this process is the leader.
type Gate interface {
	// Enter admits a call or refuses it. The returned context ends when the
	// leadership does. The caller must call leave at the end of the call.
	Enter(ctx context.Context) (guarded context.Context, epoch uint64, leave func(), err error)
}

// fencedDriver is a driver behind a gate.
type fencedDriver struct {
	driver.Driver
	gate          Gate
	log           logr.Logger
	fencedCalls   *prometheus.CounterVec
	refusalLogged sync.Once // only the first refused call is logged
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
	guarded, epoch, leave, err := enterGate(ctx, g.gate)
	if err != nil {
		g.refusalLogged.Do(func() {
			g.log.Info("A call was refused because this process does not lead; further ones are counted and not logged", "method", method, "cause", err.Error())
		})
		return driver.Errorf(driver.ErrNotLeading, "nothing was done: %w", err)
	}
	defer leave()
	err = do(guarded, epoch)
	if err != nil && guarded.Err() != nil && ctx.Err() == nil {
		return driver.Errorf(driver.ErrDeposed, "%w: %v", context.Cause(guarded), err)
	}
	if errors.Is(err, driver.ErrFenced) {
		g.fencedCalls.WithLabelValues(method).Inc() // not logged here: the inventory reports the error
	}
	return err
}
