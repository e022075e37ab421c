// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/driver/metrics"
	"cloudnative.tw/drover/test/assert"
)

// failingDriver fails every call.
type failingDriver struct {
	driver.Driver
	err error
}

func (f failingDriver) Ensure(context.Context, driver.ServerSpec) (driver.Server, error) {
	return driver.Server{}, f.err
}
func (f failingDriver) Delete(context.Context, driver.Target, bool) error { return f.err }
func (f failingDriver) List(context.Context, ...types.UID) ([]driver.Server, error) {
	return nil, f.err
}

func (f failingDriver) Usage(context.Context, ...types.UID) ([]driver.Usage, error) {
	return nil, f.err
}

func (f failingDriver) Watch(context.Context) (<-chan types.UID, error) { return nil, f.err }
func (f failingDriver) EngineID(context.Context) (string, error)        { return "", f.err }

func callAll(t *testing.T, d driver.Driver) {
	t.Helper()
	ctx := t.Context()
	_, _ = d.Ensure(ctx, driver.ServerSpec{})
	_ = d.Delete(ctx, driver.Target{}, false)
	_, _ = d.List(ctx)
	_, _ = d.Usage(ctx)
	_, _ = d.Watch(ctx)
	identifier, ok := driver.As[driver.Identifier](d)
	assert.Require(t, ok, "Identifier is unreachable")
	_, _ = identifier.EngineID(ctx)
}

// readCounts returns the histogram's counts by "driver method result".
func readCounts(t *testing.T, reg *prometheus.Registry) map[string]uint64 {
	t.Helper()
	families, err := reg.Gather()
	assert.NoError(t, err)
	found := map[string]uint64{}
	for _, family := range families {
		if family.GetName() != "drover_driver_call_duration_seconds" {
			continue
		}
		for _, m := range family.GetMetric() {
			found[labelValues(m)] = m.GetHistogram().GetSampleCount()
		}
	}
	return found
}

func labelValues(m *dto.Metric) string {
	var values []string
	for _, pair := range m.GetLabel() {
		values = append(values, pair.GetValue())
	}
	return strings.Join(values, " ")
}

func TestResults(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"ok":          nil,
		"NotFound":    driver.Errorf(driver.ErrNotFound, "x"),
		"Invalid":     driver.Errorf(driver.ErrInvalid, "x"),
		"Unsupported": driver.Errorf(driver.ErrUnsupported, "x"),
		"Retry":       driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry, "x")),
		"Exhausted":   driver.Errorf(driver.ErrExhausted, "x"),
		"Unavailable": driver.Errorf(driver.ErrUnavailable, "x: %w", context.DeadlineExceeded),
		"Fenced":      fmt.Errorf("x: %w", driver.ErrFenced),
		"Cancelled":   driver.Errorf(driver.ErrRetry, "x: %w", context.Canceled),
		"Timeout":     fmt.Errorf("x: %w", context.DeadlineExceeded),
		"Other":       errors.New("x"),
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			reg := prometheus.NewRegistry()
			callAll(t, metrics.Wrap("some", failingDriver{err: err}, reg))
			got := readCounts(t, reg)
			for _, method := range []string{"Ensure", "Delete", "List", "Usage", "Watch", "EngineID"} {
				key := "some " + method + " " + want
				assert.True(t, got[key] == 1, "%s was counted %d times, want once: %v", key, got[key], got)
			}
			assert.True(t, len(got) == 6, "got %v, want six series", got)
		})
	}
}

// TestRegisteredTwice checks that drivers share the metrics, each under its name.
func TestRegisteredTwice(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	for _, name := range []string{"a", "b", "a"} {
		callAll(t, metrics.Wrap(name, failingDriver{}, reg))
	}
	got := readCounts(t, reg)
	assert.True(t, got["a List ok"] == 2 && got["b List ok"] == 1, "got %v, want two of a and one of b", got)
	callAll(t, metrics.Wrap("c", failingDriver{}, nil))
}

// TestInFlight checks that a call is counted while it lasts.
func TestInFlight(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	inside, leave := make(chan struct{}), make(chan struct{})
	d := metrics.Wrap("some", blockingDriver{inside: inside, leave: leave}, reg)
	done := make(chan error)
	go func() { done <- d.Delete(t.Context(), driver.Target{}, false) }()
	<-inside
	want := func(n int) {
		t.Helper()
		text := fmt.Sprintf(`
			# HELP drover_driver_calls_in_flight Calls of a driver that have not returned.
			# TYPE drover_driver_calls_in_flight gauge
			drover_driver_calls_in_flight{driver="some",method="Delete"} %d
		`, n)
		assert.ReportError(t, testutil.GatherAndCompare(reg, strings.NewReader(text), "drover_driver_calls_in_flight"))
	}
	want(1)
	close(leave)
	assert.ReportError(t, <-done)
	want(0)
}

type blockingDriver struct {
	driver.Driver
	inside, leave chan struct{}
}

func (b blockingDriver) Delete(context.Context, driver.Target, bool) error {
	close(b.inside)
	<-b.leave
	return nil
}

// TestTransparent checks that a measured driver behaves like the driver.
func TestTransparent(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	drivertest.Run(t, faketest.InMemory(func(o fake.Options) fake.Options { return o }).Decorated(func(d driver.Driver) driver.Driver {
		return metrics.Wrap("fake", d, reg)
	}))
}
