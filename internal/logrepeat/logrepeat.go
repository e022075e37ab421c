// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logrepeat keeps a log readable while an operation fails again and again: it logs the same error only once in
// ten minutes. client-go logs each failed try to renew a Lease, every 2 s, and each failed try to list objects. Start
// with New.
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
	// maxErrors bounds how many errors are remembered. If there are more, all are forgotten.
	maxErrors = 200
)

// New returns a logger that drops an error if the same error was logged within the last ten minutes, with the same text
// and values. When it logs the error again, it adds how often it has dropped the error.
func New(log logr.Logger, c clock.PassiveClock) logr.Logger {
	return log.WithSink(&sink{LogSink: log.GetSink(), recent: &recentErrors{clock: c, known: map[string]*occurrence{}}})
}

type sink struct {
	logr.LogSink
	// context has the names and values of the logger.
	context string
	recent  *recentErrors
}

// Error implements logr.LogSink.
func (s *sink) Error(err error, msg string, keysAndValues ...any) {
	isRepeated, dropped := s.recent.recordError(fmt.Sprint(s.context, msg, err, keysAndValues))
	if isRepeated {
		return
	}
	if dropped > 0 {
		keysAndValues = append(slices.Clip(keysAndValues), "repeated", dropped)
	}
	s.WithCallDepth(1).(*sink).LogSink.Error(err, msg, keysAndValues...) //nolint:forcetypeassert // WithCallDepth returns a *sink
}

// WithValues implements logr.LogSink.
func (s *sink) WithValues(keysAndValues ...any) logr.LogSink {
	return &sink{s.LogSink.WithValues(keysAndValues...), s.context + fmt.Sprint(keysAndValues...), s.recent}
}

// WithName implements logr.LogSink.
func (s *sink) WithName(name string) logr.LogSink {
	return &sink{s.LogSink.WithName(name), s.context + name, s.recent}
}

// WithCallDepth implements logr.CallDepthLogSink, so that log lines name the file of the caller.
func (s *sink) WithCallDepth(depth int) logr.LogSink {
	if deeper, ok := s.LogSink.(logr.CallDepthLogSink); ok {
		return &sink{deeper.WithCallDepth(depth), s.context, s.recent}
	}
	return s
}

// recentErrors has the errors that were logged lately, keyed by their texts.
type recentErrors struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	known map[string]*occurrence
}

type occurrence struct {
	logged  time.Time
	dropped int
}

// recordError reports whether an error was logged within period. If not, it returns how often the error was dropped
// since it was last logged.
func (r *recentErrors) recordError(text string) (isRepeated bool, dropped int) {
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
