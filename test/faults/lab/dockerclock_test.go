// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// TestClockIsShown checks that times after a step are shown by the stepped clock.
func TestClockIsShown(t *testing.T) {
	since := time.Date(2026, 1, 2, 3, 0, 0, 500, time.UTC)
	for name, c := range map[string]struct {
		step       time.Duration
		line, want string
	}{
		"before": {time.Hour, `{"StartedAt":"2026-01-02T02:59:59.9Z","Created":1767322799}`, `{"StartedAt":"2026-01-02T02:59:59.9Z","Created":1767322799}`},
		"none":   {time.Hour, `{"FinishedAt":"0001-01-01T00:00:00Z"}`, `{"FinishedAt":"0001-01-01T00:00:00Z"}`},
		"ahead":  {time.Hour, `{"StartedAt":"2026-01-02T03:00:01.5Z","Created":1767322801}`, `{"StartedAt":"2026-01-02T04:00:01.5Z","Created":1767326401}`},
		"behind": {-time.Hour, `{"time":1767322801,"timeNano":1767322801000000001}`, `{"time":1767319201,"timeNano":1767319201000000001}`},
		"off":    {0, `{"StartedAt":"2026-01-02T03:00:01.5Z"}`, `{"StartedAt":"2026-01-02T03:00:01.5Z"}`},
	} {
		t.Run(name, func(t *testing.T) {
			clock := &dockerClock{since: since, step: c.step}
			got := clock.changeLine(c.line)
			assert.True(t, got == c.want, "got %s, want %s", got, c.want)
		})
	}
}
