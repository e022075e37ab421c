// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"math"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// Rates is a server's usage.
type Rates struct {
	// CPU is in per cent of one CPU: the CPU time between two samples over the time
	// between them, as in `docker stats`.
	CPU float64
	// Memory is in per cent of the server's memory.
	Memory float64
}

// reportThreshold is the difference, in points, below which a new rate is not
// reported.
const reportThreshold = 1.0

// DiffersFrom reports whether r differs from s by at least one point.
func (r Rates) DiffersFrom(s Rates) bool {
	return math.Abs(r.CPU-s.CPU) >= reportThreshold || math.Abs(r.Memory-s.Memory) >= reportThreshold
}

func (i *Inventory) runSampler(ctx context.Context) {
	period := i.Clock.NewTicker(i.UsagePeriod)
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-period.C():
			i.sampleUsage(ctx)
		}
	}
}

// sampleUsage reads the usage of all running servers in one call. If it fails the rates
// stay as they are: an engine failure is detected elsewhere.
func (i *Inventory) sampleUsage(ctx context.Context) {
	uids := i.cache.runningUIDs()
	if len(uids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, i.CallTimeout)
	defer cancel()
	usages, err := i.Driver.Usage(ctx, uids...)
	if err != nil {
		i.Log.V(1).Info("Usage not sampled", "driver", i.Name, "cause", err.Error())
		return
	}
	i.cache.publishChanges(i.cache.recordUsage(usages, 2*i.UsagePeriod))
}

func hasRun(s driver.State) bool { return s == driver.StateRunning || s == driver.StatePaused }

// updateRates turns a sample into rates and reports whether they are to be published. The
// first sample of a run that began less than fresh ago counts from the run's start.
func (e *entry) updateRates(u driver.Usage, fresh time.Duration) bool {
	server, before := e.servers[0], e.sample
	if before.Run != u.Run || before.At.IsZero() {
		before = driver.Usage{At: server.StartedAt}
		if server.StartedAt.IsZero() || u.At.Sub(server.StartedAt) > fresh {
			e.sample = u
			return false
		}
	}
	span := u.At.Sub(before.At)
	if span <= 0 {
		return false
	}
	e.sample = u
	first := e.rates == nil
	e.rates = &Rates{CPU: 100 * float64(max(u.CPU-before.CPU, 0)) / float64(span), Memory: percentOf(u.MemoryBytes, server.Applied.MemoryBytes)}
	if !first && !e.rates.DiffersFrom(e.publishedRates) {
		return false
	}
	e.publishedRates = *e.rates
	return true
}

func percentOf(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// forgetUsage drops the rates of a run that is over.
func (e *entry) forgetUsage() {
	if len(e.servers) != 1 || !hasRun(e.servers[0].State) || e.servers[0].Run != e.sample.Run {
		e.sample, e.rates, e.publishedRates = driver.Usage{}, nil, Rates{}
	}
}
