// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"path/filepath"

	"cloudnative.tw/drover/test/framework/rules"
)

// decisionsFiles matches all of them, with those that were full.
const decisionsFiles = "decisions-*"

// decisionsFile is where a process records its decisions, by a number from 0 on. Processes
// that run one after the other may share one.
func (w *World) decisionsFile(n int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("decisions-%d", n))
}

// RecordDecisions is the flag for that.
func (w *World) RecordDecisions(n int) string { return "--decisions=" + w.decisionsFile(n) }

// Decisions returns the last ones in so many files, in sentences.
func (w *World) Decisions(files int) string {
	var paths []string
	for n := range files {
		paths = append(paths, w.decisionsFile(n))
	}
	all, err := rules.ReadDecisions(paths...)
	if err != nil {
		return "the decisions cannot be read: " + err.Error()
	}
	return rules.FormatDecisions(all)
}

// replayDecisions derives all recorded decisions again, and returns those that come out
// otherwise (O14).
func (w *World) replayDecisions() ([]Violation, error) {
	if w.DecidesOtherwise {
		return nil, nil
	}
	paths, err := filepath.Glob(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	all, err := rules.ReadDecisions(paths...)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Lab.replayed.Add(int64(max(0, len(all)-w.replayed)))
	w.replayed = max(w.replayed, len(all))
	return rules.CheckDecisions(all), nil
}

// TakeReplayed returns how many decisions were derived again since the last call.
func (l *Lab) TakeReplayed() int64 { return l.replayed.Swap(0) }

// Decisions returns the last decisions of all processes, in sentences.
func (r *Replicas) Decisions() string { return r.world.Decisions(len(r.Processes())) }
