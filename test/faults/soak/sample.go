// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const (
	samplePeriod = 5 * time.Second
	// scrapeTimeout bounds a look at a process.
	scrapeTimeout = 30 * time.Second
)

// needs are what a process needs, in the order of fields.
type needs [5]float64

// fields are the names of needs, in a table and in the metrics of a process.
var fields = [len(needs{})]struct{ column, metric string }{
	{"resident", "process_resident_memory_bytes"},
	{"heap", "go_memstats_heap_alloc_bytes"},
	{"heap_inuse", "go_memstats_heap_inuse_bytes"},
	{"goroutines", "go_goroutines"},
	{"descriptors", "process_open_fds"},
}

// sample is a look at a process.
type sample struct {
	at      time.Duration
	phase   string
	replica string
	pid     int
	// rest says that no VirtualMachine exists, and that garbage was just collected.
	rest      bool
	vms, done int
	needs     needs
}

// samples are all looks so far. They are written as a table.
type samples struct {
	file  *os.File
	table *csv.Writer
	start time.Time

	mu    sync.Mutex
	phase string
	done  int // lifecycles
	all   []sample
}

// newSamples opens the table in a folder; without one there is none.
func newSamples(name, dir string) (*samples, error) {
	s := &samples{start: time.Now(), table: csv.NewWriter(io.Discard)}
	if dir != "" {
		var err error
		if s.file, err = os.Create(filepath.Join(dir, "soak-"+name+".csv")); err != nil {
			return nil, err
		}
		s.table = csv.NewWriter(s.file)
	}
	header := []string{"seconds", "phase", "replica", "pid", "rest", "vms", "lifecycles"}
	for _, f := range fields {
		header = append(header, f.column)
	}
	return s, s.table.Write(header)
}

func (s *samples) close() error {
	if s.table.Flush(); s.file == nil {
		return nil
	}
	return s.file.Close()
}

// begin begins a phase.
func (s *samples) begin(phase string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.phase = phase
}

func (s *samples) addDone() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done++
}

// follow takes samples until ctx ends. A process that has just ended, or is halted, gives
// none.
func (s *samples) follow(ctx context.Context, of *soak) {
	for ; ctx.Err() == nil; framework.Sleep(ctx, samplePeriod) {
		for _, name := range names {
			_ = s.take(ctx, of, name, false)
		}
	}
}

// rest takes a sample of each process after garbage was collected.
func (s *samples) rest(ctx context.Context, of *soak) error {
	for _, name := range names {
		err := s.take(ctx, of, name, true)
		if err != nil && of.replicas.mayLose {
			err = assert.Poll(ctx, name+" has started again", func() error { return s.take(ctx, of, name, true) })
		}
		if err != nil {
			return fmt.Errorf("sample of %s: %w", name, err)
		}
	}
	return nil
}

func (s *samples) take(ctx context.Context, of *soak, name string, rest bool) error {
	taken := sample{replica: name, rest: rest, vms: len(of.world.Existing())}
	if p := of.replicas.Running()[name]; p != nil {
		taken.pid = p.PID()
	}
	if rest {
		for range 2 { // what has a finalizer goes with the second collection
			if _, err := of.replicas.get(ctx, name, "/debug/pprof/heap?gc=1"); err != nil {
				return err
			}
		}
	}
	page, err := of.replicas.get(ctx, name, "/metrics")
	if err != nil {
		return err
	}
	if taken.needs, err = needsOf(page); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	taken.at, taken.phase, taken.done = time.Since(s.start), s.phase, s.done
	s.all = append(s.all, taken)
	err = s.table.Write(taken.row())
	s.table.Flush()
	return err
}

func (s sample) row() []string {
	row := []string{
		strconv.FormatFloat(s.at.Seconds(), 'f', 1, 64), s.phase, s.replica, strconv.Itoa(s.pid), strconv.FormatBool(s.rest),
		strconv.Itoa(s.vms), strconv.Itoa(s.done),
	}
	for _, value := range s.needs {
		row = append(row, strconv.FormatFloat(value, 'f', 0, 64))
	}
	return row
}

// atRest returns the samples at rest.
func (s *samples) atRest() []sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.all), func(s sample) bool { return !s.rest })
}

// needsOf reads them in a page of metrics, which has all of them.
func needsOf(page framework.Metrics) (n needs, err error) {
	for i, f := range fields {
		if n[i] = page.Sum(f.metric); n[i] == 0 {
			return n, fmt.Errorf("there is no metric %s", f.metric)
		}
	}
	return n, nil
}
