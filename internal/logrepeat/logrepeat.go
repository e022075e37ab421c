// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logrepeat keeps a log readable while something fails again and again: it logs the same error once in ten
// minutes. client-go logs each try to renew a Lease, every 2 s, and each try to list objects. Start with New.
package logrepeat

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

const (
	// period is how long an error is not logged again.
	period = 10 * time.Minute
	// maxErrors bounds how many errors are remembered. All are forgotten when there are more.
	maxErrors = 200
)

// New returns a logger that drops an error which was logged within the last ten minutes with the same text and
// values. The next one that is logged says how often it was dropped.
func New(log logr.Logger, c clock.PassiveClock) logr.Logger {
	return log.WithSink(&sink{LogSink: log.GetSink(), recent: &recentErrors{clock: c, known: map[string]*occurrence{}}})
}

type sink struct {
	logr.LogSink
	// context is the logger's names and values.
	context string
	recent  *recentErrors
}

// Error implements logr.LogSink.
func (s *sink) Error(err error, msg string, keysAndValues ...any) {
	isRepeated, dropped := s.recent.noteError(fmt.Sprint(s.context, msg, err, keysAndValues))
	if isRepeated {
		return
	}
	if dropped > 0 {
		keysAndValues = append(slices.Clip(keysAndValues), "repeated", dropped)
	}
	s.WithCallDepth(1).(*sink).LogSink.Error(err, msg, keysAndValues...) //nolint:forcetypeassert // it returns one
}

// WithValues implements logr.LogSink.
func (s *sink) WithValues(keysAndValues ...any) logr.LogSink {
	return &sink{s.LogSink.WithValues(keysAndValues...), s.context + fmt.Sprint(keysAndValues...), s.recent}
}

// WithName implements logr.LogSink.
func (s *sink) WithName(name string) logr.LogSink {
	return &sink{s.LogSink.WithName(name), s.context + name, s.recent}
}

// WithCallDepth implements logr.CallDepthLogSink, so that lines name the file that logs.
func (s *sink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return &sink{deeper.WithCallDepth(depth), s.context, s.recent}
	}
	return s
}

// recentErrors are the errors that were logged lately.
type recentErrors struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	known map[string]*occurrence
}

type occurrence struct {
	logged  time.Time
	dropped int
}

// noteError reports whether an error was logged lately, else how often it was dropped since it was logged last.
func (r *recentErrors) noteError(text string) (isRepeated bool, dropped int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, known := r.clock.Now(), r.known[text]
	switch {
	case known == nil && len(r.known) >= maxErrors:
		clear(r.known)
	case known == nil:
	case now.Sub(known.logged) < period:
		known.dropped++
		return true, 0
	default:
		dropped = known.dropped
	}
	r.known[text] = &occurrence{logged: now}
	return false, dropped
}
