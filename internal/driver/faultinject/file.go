// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package faultinject

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/internal/driver"
)

// all is the entry for every VM and for the engine itself.
const all = "*"

// Fault is the faults of one entry.
type Fault struct {
	FailCreate         int             `json:"failCreate,omitempty"`
	Kind               string          `json:"kind,omitempty"`
	Message            string          `json:"message,omitempty"`
	Hang               bool            `json:"hang,omitempty"`
	SucceedThenTimeout bool            `json:"succeedThenTimeout,omitempty"`
	EngineUnavailable  bool            `json:"engineUnavailable,omitempty"`
	Latency            metav1.Duration `json:"latency,omitzero"`
}

const fields = "failCreate, kind, message, hang, succeedThenTimeout, engineUnavailable and latency"

var errOther = errors.New("no sentinel explains this")

var kinds = map[string]error{
	"retry":       driver.ErrRetry,
	"invalid":     driver.ErrInvalid,
	"unsupported": driver.ErrUnsupported,
	"exhausted":   driver.ErrExhausted,
	"unavailable": driver.ErrUnavailable,
	"other":       errOther,
}

func (f Fault) check(vm string) error {
	switch {
	case strings.Count(vm, "/") > 1 || vm == "" || (strings.Contains(vm, all) && vm != all):
		return fmt.Errorf("%q names no VM: it must be namespace/name, name or %s", vm, all)
	case f.FailCreate < 0:
		return fmt.Errorf("%s: failCreate is %d: it must not be negative", vm, f.FailCreate)
	case f.Latency.Duration < 0:
		return fmt.Errorf("%s: latency is %v: it must not be negative", vm, f.Latency.Duration)
	case f.EngineUnavailable && vm != all:
		return fmt.Errorf("%s: engineUnavailable is true: it is allowed under %q only", vm, all)
	case f.Kind != "" && kinds[f.Kind] == nil:
		return fmt.Errorf("%s: kind is %q: it must be one of %s", vm, f.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	return nil
}

func parse(content []byte) (map[string]Fault, error) {
	var entries map[string]Fault
	if err := yaml.UnmarshalStrict(content, &entries); err != nil {
		return nil, fmt.Errorf("%w (a VM's faults are %s)", err, fields)
	}
	for vm, f := range entries {
		if err := f.check(vm); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// file is the faults file as last read.
type file struct {
	path string
	log  logr.Logger

	mu      sync.Mutex
	stamp   fs.FileInfo // nil: it did not exist
	blocked bool        // stat of it fails
	entries map[string]Fault
	spent   map[spent]int
}

// spent is the key under which the failed creations of a VM are counted for an entry.
type spent struct{ entry, vm string }

// find returns the entry that applies to a VM. "" stands for the engine.
func (f *file) find(vm string) (string, Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refresh()
	_, name, _ := strings.Cut(vm, "/")
	for _, entry := range []string{vm, name, all} {
		if fault, ok := f.entries[entry]; ok && entry != "" {
			return entry, fault
		}
	}
	return "", Fault{}
}

// spend reports whether the next creation of a VM is to fail, and counts it.
func (f *file) spend(entry, vm string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := spent{entry, vm}
	if f.spent[key] >= f.entries[entry].FailCreate {
		return false
	}
	f.spent[key]++
	return true
}

// refresh reads the file if it has changed since it was last read.
func (f *file) refresh() {
	now, err := os.Stat(f.path)
	blocked := err != nil && !errors.Is(err, fs.ErrNotExist)
	switch {
	case blocked && !f.blocked:
		f.log.Error(err, "Faults file cannot be read; what it said before holds on")
	case blocked:
	case err != nil && f.stamp != nil:
		f.stamp = nil
		f.take(nil)
	case err == nil && !same(f.stamp, now):
		f.stamp = now
		f.read()
	}
	f.blocked = blocked
}

func same(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *file) read() {
	content, err := os.ReadFile(f.path)
	var entries map[string]Fault
	if err == nil {
		entries, err = parse(content)
	}
	if err != nil {
		f.log.Error(err, "Faults file has a mistake; what it said before holds on", "file", f.path)
		return
	}
	f.take(entries)
}

// take replaces the entries, and resets the counts of those that have changed.
func (f *file) take(entries map[string]Fault) {
	for key := range f.spent {
		if entries[key.entry] != f.entries[key.entry] {
			delete(f.spent, key)
		}
	}
	f.entries = entries
	f.log.Info("Faults file read", "file", f.path, "entries", len(entries))
}
