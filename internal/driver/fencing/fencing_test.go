// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fencing_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/test/assert"
)

// fakeGate is open under an epoch, or closed.
type fakeGate struct {
	epoch  uint64
	closed error
	inside int
	cancel context.CancelFunc
}

func (g *fakeGate) Enter(ctx context.Context) (context.Context, uint64, func(), error) {
	if g.closed != nil {
		return nil, 0, nil, g.closed
	}
	g.inside++
	ctx, g.cancel = context.WithCancel(ctx)
	return ctx, g.epoch, func() { g.inside-- }, nil
}

// recordingDriver records the calls that reach it.
type recordingDriver struct {
	driver.Driver
	reached []string
	during  func(context.Context) error
}

func (e *recordingDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	e.reached = append(e.reached, fmt.Sprint("Ensure ", spec.UID, " ", spec.Epoch))
	return driver.Server{UID: spec.UID}, e.during(ctx)
}

func (e *recordingDriver) Delete(ctx context.Context, t driver.Target, _ bool) error {
	e.reached = append(e.reached, fmt.Sprint("Delete ", t.UID, " ", t.Epoch))
	return e.during(ctx)
}

func callBoth(t *testing.T, d driver.Driver) error {
	t.Helper()
	target := driver.Target{UID: "u", Epoch: 1}
	_, err := d.Ensure(t.Context(), driver.ServerSpec{Target: target})
	return errors.Join(err, d.Delete(t.Context(), target, false))
}

func TestGate(t *testing.T) {
	t.Parallel()
	closed, failed := errors.New("closed"), errors.New("failed")
	for name, c := range map[string]struct {
		gate    fakeGate
		during  error
		reached string
		kind    error
	}{
		"open":   {fakeGate{epoch: 7}, nil, "Ensure u 7,Delete u 7", nil},
		"fails":  {fakeGate{epoch: 7}, failed, "Ensure u 7,Delete u 7", failed},
		"closed": {fakeGate{closed: closed}, nil, "", driver.ErrNotLeading},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &recordingDriver{during: func(context.Context) error { return c.during }}
			err := callBoth(t, fencing.Wrap("some", e, &c.gate, logr.Discard(), nil))
			assert.True(t, errors.Is(err, c.kind) && (c.gate.closed == nil || errors.Is(err, c.gate.closed)), "got error %v, want %v", err, c.kind)
			assert.Equal(t, "the driver", strings.Join(e.reached, ","), c.reached)
			assert.Equal(t, "calls did not leave", c.gate.inside, 0)
		})
	}
}

// TestCallEndsWithLeadership checks that the driver gets the gate's context, and that an
// error after the right has ended proves nothing about the server.
func TestCallEndsWithLeadership(t *testing.T) {
	t.Parallel()
	g := &fakeGate{epoch: 7}
	e := &recordingDriver{during: func(ctx context.Context) error {
		g.cancel()
		return driver.Errorf(driver.ErrRetry, "%w", ctx.Err())
	}}
	err := callBoth(t, fencing.Wrap("some", e, g, logr.Discard(), nil))
	assert.True(t, errors.Is(err, driver.ErrDeposed) && !errors.Is(err, driver.ErrRetry) && driver.Ambiguous(err),
		"got error %v, want %v alone, which is ambiguous", err, driver.ErrDeposed)
}

func TestFencedCallsAreCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	e := &recordingDriver{during: func(context.Context) error { return driver.Errorf(driver.ErrFenced, "epoch 8 has acted") }}
	d := fencing.Wrap("some", e, &fakeGate{epoch: 7}, logr.Discard(), reg)
	for range 3 {
		assert.ErrorIs(t, "the calls", callBoth(t, d), driver.ErrFenced)
	}
	want := `
		# HELP drover_fenced_calls_total Calls that an engine refused because a newer epoch has acted on it.
		# TYPE drover_fenced_calls_total counter
		drover_fenced_calls_total{driver="some",method="Delete"} 3
		drover_fenced_calls_total{driver="some",method="Ensure"} 3
	`
	assert.ReportError(t, testutil.GatherAndCompare(reg, strings.NewReader(want)))
}

func TestRefusalIsLoggedOnce(t *testing.T) {
	t.Parallel()
	lines := 0
	log := funcr.New(func(string, string) { lines++ }, funcr.Options{})
	d := fencing.Wrap("some", &recordingDriver{}, &fakeGate{closed: errors.New("closed")}, log, nil)
	for range 3 {
		if err := callBoth(t, d); !errors.Is(err, driver.ErrNotLeading) || errors.Is(err, driver.ErrFenced) {
			t.Errorf("got error %v, want %v, which no engine returns", err, driver.ErrNotLeading)
		}
	}
	assert.Equal(t, "lines were logged", lines, 1)
}

// TestTransparent checks that an open gate changes nothing.
func TestTransparent(t *testing.T) {
	t.Parallel()
	bare := faketest.InMemory(func(o fake.Options) fake.Options { return o })
	bare.Skips = map[string]string{}
	for _, name := range []string{"FenceOldEpoch", "FenceOutlivesServers", "FencePerCluster", "FenceUnderLoad"} {
		bare.Skips[name] = "the epoch is the gate's"
	}
	drivertest.Run(t, bare.Decorated(func(d driver.Driver) driver.Driver {
		return fencing.Wrap("fake", d, openGate{}, logr.Discard(), nil)
	}))
}

type openGate struct{}

func (openGate) Enter(ctx context.Context) (context.Context, uint64, func(), error) {
	return ctx, 0, func() {}, nil
}
