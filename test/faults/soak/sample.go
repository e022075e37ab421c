// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"bufio"
	"context"
	"encoding/csv"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/users"
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
	for ; ctx.Err() == nil; users.Sleep(ctx, samplePeriod) {
		for _, r := range of.fleet.replicas {
			_ = s.take(ctx, of, r, false)
		}
	}
}

// rest takes a sample of each process after garbage was collected.
func (s *samples) rest(ctx context.Context, of *soak) error {
	for _, r := range of.fleet.replicas {
		err := s.take(ctx, of, r, true)
		if err != nil && of.fleet.mayLose {
			err = assert.Poll(ctx, r.name+" has started again", func() error { return s.take(ctx, of, r, true) })
		}
		if err != nil {
			return fmt.Errorf("sample of %s: %w", r.name, err)
		}
	}
	return nil
}

func (s *samples) take(ctx context.Context, of *soak, r *replica, rest bool) error {
	taken := sample{replica: r.name, pid: r.pid(), rest: rest, vms: len(of.world.Existing())}
	if rest {
		for range 2 { // what has a finalizer goes with the second collection
			if _, err := get(ctx, "http://"+r.pprof+"/debug/pprof/heap?gc=1"); err != nil {
				return err
			}
		}
	}
	text, err := get(ctx, "http://"+r.metrics+"/metrics")
	if err != nil {
		return err
	}
	if taken.needs, err = parseNeeds(text); err != nil {
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

// pid returns that of the process, or 0.
func (r *replica) pid() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == nil {
		return 0
	}
	return r.process.PID()
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

// parseNeeds reads them in what a metrics endpoint says.
func parseNeeds(text string) (needs, error) {
	var n needs
	found := 0
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), " ")
		for i, f := range fields {
			if name != f.metric {
				continue
			}
			var err error
			if n[i], err = strconv.ParseFloat(value, 64); err != nil {
				return n, fmt.Errorf("metric %s: %w", name, err)
			}
			found++
		}
	}
	if found != len(fields) {
		return n, fmt.Errorf("%d of %d metrics were found", found, len(fields))
	}
	return n, lines.Err()
}

// client keeps no connection open, which would count as one of the process.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, scrapeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	content, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says %s", url, res.Status)
	}
	return string(content), err
}
