// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package metrics is a decorator that measures the calls of a driver.
//
// Start with Wrap. It adds
//
//	drover_driver_call_duration_seconds{driver,method,result}  histogram
//	drover_driver_calls_in_flight{driver,method}               gauge
//
// where result is ok, the kind of the error (NotFound, Invalid, Unsupported,
// Retry, Exhausted, Unavailable, Fenced), Cancelled, Timeout, or Other.
package metrics

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// results are in the order of precedence, because an error may be of several kinds: an
// error that is both Cancelled and Retry counts as Cancelled.
var results = []struct {
	err  error
	name string
}{
	{driver.ErrFenced, "Fenced"},
	{driver.ErrNotFound, "NotFound"},
	{driver.ErrInvalid, "Invalid"},
	{driver.ErrUnsupported, "Unsupported"},
	{driver.ErrExhausted, "Exhausted"},
	{driver.ErrUnavailable, "Unavailable"},
	{context.Canceled, "Cancelled"},
	{context.DeadlineExceeded, "Timeout"},
	{driver.ErrRetry, "Retry"},
}

func resultOf(err error) string {
	if err == nil {
		return "ok"
	}
	for _, r := range results {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "Other"
}

// measuredDriver is a driver whose calls are measured.
type measuredDriver struct {
	driver.Driver
	duration prometheus.ObserverVec
	inFlight *prometheus.GaugeVec
}

// Wrap measures d under the given name. Several drivers can share a registry;
// with a nil registry the metrics are not exposed.
func Wrap(name string, d driver.Driver, reg prometheus.Registerer) driver.Driver {
	duration := registerOrReuse(reg, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "drover_driver_call_duration_seconds",
		Help: "How long calls of a driver took, by their result.",
		// A local engine answers in milliseconds. The longest calls end at the
		// deadline of the caller.
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
	}, []string{"driver", "method", "result"}))
	inFlight := registerOrReuse(reg, prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "drover_driver_calls_in_flight",
		Help: "Calls of a driver that have not returned.",
	}, []string{"driver", "method"}))
	named := prometheus.Labels{"driver": name}
	return &measuredDriver{
		Driver:   d,
		duration: duration.MustCurryWith(named),
		inFlight: inFlight.MustCurryWith(named),
	}
}

// registerOrReuse registers c, or returns the collector of this name that another driver has
// registered. If the name belongs to a collector of another type, c is not exposed.
func registerOrReuse[C prometheus.Collector](reg prometheus.Registerer, c C) C {
	if reg == nil {
		return c
	}
	err := reg.Register(c)
	if already, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	return c
}

// Unwrap makes the optional interfaces of the driver reachable (driver.As).
func (m *measuredDriver) Unwrap() driver.Driver { return m.Driver }

func (m *measuredDriver) measureCall(method string, do func() error) error {
	inFlight := m.inFlight.WithLabelValues(method)
	inFlight.Inc()
	defer inFlight.Dec()
	var err error
	timer := prometheus.NewTimer(prometheus.ObserverFunc(func(seconds float64) {
		m.duration.WithLabelValues(method, resultOf(err)).Observe(seconds)
	}))
	defer timer.ObserveDuration()
	err = do()
	return err
}

// Ensure measures Ensure.
func (m *measuredDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (s driver.Server, err error) {
	err = m.measureCall("Ensure", func() error {
		s, err = m.Driver.Ensure(ctx, spec)
		return err
	})
	return s, err
}

// Delete measures Delete.
func (m *measuredDriver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	return m.measureCall("Delete", func() error { return m.Driver.Delete(ctx, t, retain) })
}

// List measures List.
func (m *measuredDriver) List(ctx context.Context, uids ...types.UID) (servers []driver.Server, err error) {
	err = m.measureCall("List", func() error {
		servers, err = m.Driver.List(ctx, uids...)
		return err
	})
	return servers, err
}

// Usage measures Usage.
func (m *measuredDriver) Usage(ctx context.Context, uids ...types.UID) (samples []driver.Usage, err error) {
	err = m.measureCall("Usage", func() error {
		samples, err = m.Driver.Usage(ctx, uids...)
		return err
	})
	return samples, err
}

// Watch measures how long it takes to open the watch.
func (m *measuredDriver) Watch(ctx context.Context) (uids <-chan types.UID, err error) {
	err = m.measureCall("Watch", func() error {
		uids, err = m.Driver.Watch(ctx)
		return err
	})
	return uids, err
}

// EngineID measures EngineID.
func (m *measuredDriver) EngineID(ctx context.Context) (id string, err error) {
	err = m.measureCall("EngineID", func() error {
		identifier, ok := driver.As[driver.Identifier](m.Driver)
		if !ok {
			return driver.Errorf(driver.ErrUnsupported, "the driver does not report its engine's id")
		}
		id, err = identifier.EngineID(ctx)
		return err
	})
	return id, err
}
