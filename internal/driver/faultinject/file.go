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

// allVMs is the name of the entry for every VM and for the engine itself.
const allVMs = "*"

// Fault has the faults of one entry of the file: see the package comment.
type Fault struct {
	FailCreate         int             `json:"failCreate,omitempty"`
	Kind               string          `json:"kind,omitempty"`
	Message            string          `json:"message,omitempty"`
	Hang               bool            `json:"hang,omitempty"`
	SucceedThenTimeout bool            `json:"succeedThenTimeout,omitempty"`
	EngineUnavailable  bool            `json:"engineUnavailable,omitempty"`
	Latency            metav1.Duration `json:"latency,omitzero"`
}

const fieldNames = "failCreate, kind, message, hang, succeedThenTimeout, engineUnavailable and latency"

var errOther = errors.New("an error without a kind")

var kinds = map[string]error{
	"retry":       driver.ErrRetry,
	"invalid":     driver.ErrInvalid,
	"unsupported": driver.ErrUnsupported,
	"exhausted":   driver.ErrExhausted,
	"unavailable": driver.ErrUnavailable,
	"other":       errOther,
}

func (f Fault) validateFor(vm string) error {
	switch {
	case strings.Count(vm, "/") > 1 || vm == "" || (strings.Contains(vm, allVMs) && vm != allVMs):
		return fmt.Errorf("%q names no VM: it must be namespace/name, name or %s", vm, allVMs)
	case f.FailCreate < 0:
		return fmt.Errorf("%s: failCreate is %d: it must not be negative", vm, f.FailCreate)
	case f.Latency.Duration < 0:
		return fmt.Errorf("%s: latency is %v: it must not be negative", vm, f.Latency.Duration)
	case f.EngineUnavailable && vm != allVMs:
		return fmt.Errorf("%s: engineUnavailable is true: it is allowed under %q only", vm, allVMs)
	case f.Kind != "" && kinds[f.Kind] == nil:
		return fmt.Errorf("%s: kind is %q: it must be one of %s", vm, f.Kind, strings.Join(slices.Sorted(maps.Keys(kinds)), ", "))
	}
	return nil
}

func parseFaults(content []byte) (map[string]Fault, error) {
	var entries map[string]Fault
	if err := yaml.UnmarshalStrict(content, &entries); err != nil {
		return nil, fmt.Errorf("%w (a VM's faults are %s)", err, fieldNames)
	}
	for vm, f := range entries {
		if err := f.validateFor(vm); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// faultsFile has the content of the faults file, which it reads again after changes.
type faultsFile struct {
	path string
	log  logr.Logger

	mu         sync.Mutex
	lastInfo   fs.FileInfo // metadata at the last read; nil if the file did not exist
	unreadable bool        // whether stat fails
	entries    map[string]Fault
	failures   map[failureKey]int
}

// failureKey is the key of a count of failed creations: each VM that an entry applies to has
// a separate count.
type failureKey struct{ entry, vm string }

// faultFor returns the entry that applies to a VM, or to the engine if vm is empty.
func (f *faultsFile) faultFor(vm string) (entry string, fault Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reloadIfChanged()
	_, name, _ := strings.Cut(vm, "/")
	for _, entry := range []string{vm, name, allVMs} {
		if fault, ok := f.entries[entry]; ok && entry != "" {
			return entry, fault
		}
	}
	return "", Fault{}
}

// countFailure reports whether the next creation of a VM has to fail, and counts this failure.
func (f *faultsFile) countFailure(entry, vm string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	key := failureKey{entry, vm}
	if f.failures[key] >= f.entries[entry].FailCreate {
		return false
	}
	f.failures[key]++
	return true
}

// reloadIfChanged reads the file if it has changed since it was last read.
func (f *faultsFile) reloadIfChanged() {
	now, err := os.Stat(f.path)
	isUnreadable := err != nil && !errors.Is(err, fs.ErrNotExist)
	switch {
	case isUnreadable && !f.unreadable:
		f.log.Error(err, "Faults file cannot be read, so its last content stays in force")
	case isUnreadable:
	case err != nil && f.lastInfo != nil:
		f.lastInfo = nil
		f.replaceEntries(nil)
	case err == nil && !isUnchanged(f.lastInfo, now):
		f.lastInfo = now
		f.readFile()
	}
	f.unreadable = isUnreadable
}

func isUnchanged(a, b fs.FileInfo) bool {
	return a != nil && os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

func (f *faultsFile) readFile() {
	content, err := os.ReadFile(f.path)
	var entries map[string]Fault
	if err == nil {
		entries, err = parseFaults(content)
	}
	if err != nil {
		f.log.Error(err, "Faults file has a mistake, so its last valid content stays in force", "file", f.path)
		return
	}
	f.replaceEntries(entries)
}

// replaceEntries replaces the entries, and resets the counts of the entries that have changed.
func (f *faultsFile) replaceEntries(entries map[string]Fault) {
	for key := range f.failures {
		if entries[key.entry] != f.entries[key.entry] {
			delete(f.failures, key)
		}
	}
	f.entries = entries
	f.log.Info("Faults file read", "file", f.path, "entries", len(entries))
}
