// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"strconv"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// Metrics is a page of a program's metrics.
type Metrics []byte

// Sum returns the sum of the metrics of that name whose labels contain all of the texts.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(string(m)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		has := true
		for _, text := range labels {
			has = has && strings.Contains(line, text)
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if has && err == nil {
			sum += value
		}
	}
	return sum
}

// ReadMetrics reads the page of the process.
func (p *Process) ReadMetrics(t testing.TB) Metrics {
	t.Helper()
	page, err := p.Get(t.Context(), "/metrics")
	assert.NoError(t, err)
	return page
}
