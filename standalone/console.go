// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
)

// consoleSink shows log lines that a person should see, such as the choice of drivers.
type consoleSink struct {
	console *progress
	values  []any
}

// Init implements logr.LogSink.
func (s *consoleSink) Init(logr.RuntimeInfo) {}

// Enabled implements logr.LogSink: details only go to the log.
func (s *consoleSink) Enabled(level int) bool { return level == 0 }

// Info implements logr.LogSink.
func (s *consoleSink) Info(_ int, msg string, keysAndValues ...any) {
	s.console.printf("    %s%s\n", msg, formatPairs(append(slices.Clip(s.values), keysAndValues...)))
}

// Error implements logr.LogSink.
func (s *consoleSink) Error(err error, msg string, keysAndValues ...any) {
	s.Info(0, msg, append(keysAndValues, "error", err)...)
}

// WithValues implements logr.LogSink.
func (s *consoleSink) WithValues(keysAndValues ...any) logr.LogSink {
	return &consoleSink{console: s.console, values: append(slices.Clip(s.values), keysAndValues...)}
}

// WithName implements logr.LogSink.
func (s *consoleSink) WithName(string) logr.LogSink { return s }

func formatPairs(keysAndValues []any) string {
	var b strings.Builder
	for i := 0; i+1 < len(keysAndValues); i += 2 {
		fmt.Fprintf(&b, ", %v %v", keysAndValues[i], keysAndValues[i+1])
	}
	return b.String()
}
