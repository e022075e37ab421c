// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// scrapeTimeout bounds a request to a process.
const scrapeTimeout = 30 * time.Second

// needs are the resources that a process needs, in the order of fields.
type needs [4]float64

// fields has the name of each of needs, and the name of its metric.
var fields = [len(needs{})]struct{ name, metric string }{
	{"resident", "process_resident_memory_bytes"},
	{"heap", "go_memstats_heap_alloc_bytes"},
	{"goroutines", "go_goroutines"},
	{"descriptors", "process_open_fds"},
}

// sample has the resources of a process at rest: no VirtualMachine exists, and garbage was just collected.
type sample struct {
	replica string
	pid     int
	done    int // lifecycles so far
	needs   needs
}

// samples has all samples so far.
type samples struct {
	mu   sync.Mutex
	done int // lifecycles so far
	all  []sample
}

func (s *samples) addDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
}

// takeSamples takes a sample of each process, and waits for one that starts again.
func (s *samples) takeSamples(ctx context.Context, running *soak) error {
	for _, name := range names {
		err := s.takeSample(ctx, running, name)
		if err != nil && running.replicas.mayLose {
			err = assert.Poll(ctx, name+" has started again", func() error { return s.takeSample(ctx, running, name) })
		}
		if err != nil {
			return fmt.Errorf("sample of %s: %w", name, err)
		}
	}
	return nil
}

func (s *samples) takeSample(ctx context.Context, running *soak, name string) error {
	taken := sample{replica: name}
	if p := running.replicas.Running()[name]; p != nil {
		taken.pid = p.PID()
	}
	for range 2 { // objects with a finalizer are freed by the second collection
		if _, err := running.replicas.get(ctx, name, "/debug/pprof/heap?gc=1"); err != nil {
			return err
		}
	}
	page, err := running.replicas.get(ctx, name, "/metrics")
	if err != nil {
		return err
	}
	if taken.needs, err = needsOf(page); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	taken.done = s.done
	s.all = append(s.all, taken)
	return nil
}

// needsOf reads the needs of a process from its metrics.
func needsOf(page framework.Metrics) (n needs, err error) {
	for i, f := range fields {
		if n[i] = page.Sum(f.metric); n[i] == 0 {
			return n, fmt.Errorf("there is no metric %s", f.metric)
		}
	}
	return n, nil
}
