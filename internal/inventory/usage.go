// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/types"

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

// worthTelling is the difference, in points, below which a new rate is not
// reported.
const worthTelling = 1.0

// Moved reports whether r differs from s by at least one point.
func (r Rates) Moved(s Rates) bool {
	return math.Abs(r.CPU-s.CPU) >= worthTelling || math.Abs(r.Memory-s.Memory) >= worthTelling
}

func (i *Inventory) sampleForever(ctx context.Context) {
	period := i.Clock.NewTicker(i.UsagePeriod)
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-period.C():
			i.sample(ctx)
		}
	}
}

// sample reads the usage of all running servers in one call. If it fails the rates
// stay as they are: an engine failure is detected elsewhere.
func (i *Inventory) sample(ctx context.Context) {
	uids := i.running()
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
	i.publish(i.record(usages))
}

func (i *Inventory) running() []types.UID {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !i.known {
		return nil
	}
	uids := make([]types.UID, 0, len(i.entries))
	for uid, e := range i.entries {
		if len(e.servers) == 1 && runs(e.servers[0].State) {
			uids = append(uids, uid)
		}
	}
	return uids
}

func runs(s driver.State) bool { return s == driver.StateRunning || s == driver.StatePaused }

func (i *Inventory) record(usages []driver.Usage) []Change {
	i.mu.Lock()
	defer i.mu.Unlock()
	var changes []Change
	for _, u := range usages {
		e := i.entries[u.UID]
		if e == nil || len(e.servers) != 1 || e.servers[0].Run != u.Run {
			continue
		}
		if e.rate(u, 2*i.UsagePeriod) {
			s := e.servers[0]
			vm := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
			changes = append(changes, Change{UID: u.UID, VM: vm, Routine: true})
		}
	}
	return changes
}

// rate turns a sample into rates and reports whether they are to be published. The
// first sample of a run that began less than fresh ago counts from the run's start.
func (e *entry) rate(u driver.Usage, fresh time.Duration) bool {
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
	e.rates = &Rates{CPU: 100 * float64(max(u.CPU-before.CPU, 0)) / float64(span), Memory: share(u.MemoryBytes, server.Applied.MemoryBytes)}
	if !first && !e.rates.Moved(e.publishedRates) {
		return false
	}
	e.publishedRates = *e.rates
	return true
}

func share(part, whole int64) float64 {
	if whole <= 0 {
		return 0
	}
	return 100 * float64(part) / float64(whole)
}

// forgetUsage drops the rates of a run that is over.
func (e *entry) forgetUsage() {
	if len(e.servers) != 1 || !runs(e.servers[0].State) || e.servers[0].Run != e.sample.Run {
		e.sample, e.rates, e.publishedRates = driver.Usage{}, nil, Rates{}
	}
}
