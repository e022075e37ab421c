// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"cloudnative.tw/drover/test/assert"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	with := func(lease, renew, retry time.Duration) Settings {
		return Settings{Lease: lease, Renew: renew, Retry: retry}
	}
	for name, c := range map[string]struct {
		settings Settings
		wants    string // in the error; empty: none
	}{
		"defaults":      {DefaultSettings(), ""},
		"the tutorials": {with(60*time.Second, 15*time.Second, 5*time.Second), ""},
		"too tight": {
			with(3*time.Second, 2900*time.Millisecond, 500*time.Millisecond),
			"must be at most the lease: 500ms + 200ms + 2.9s + 200ms is more than 3s",
		},
		"a second too long":      {with(15*time.Second, 12*time.Second, 2*time.Second), "is more than 15s"},
		"not whole seconds":      {with(15500*time.Millisecond, 10*time.Second, 2*time.Second), "the lease is 15.5s: it must be a whole number of seconds"},
		"the longest":            {with(time.Hour, 10*time.Second, 2*time.Second), ""},
		"longer":                 {with(time.Hour+time.Second, 10*time.Second, 2*time.Second), "the lease is 1h0m1s: it must be at most 1h0m0s"},
		"no lease":               {with(0, 10*time.Second, 2*time.Second), "the lease is 0s"},
		"no retries":             {with(15*time.Second, 10*time.Second, 0), "the retry period is 0s"},
		"renewed less than once": {with(60*time.Second, 10*time.Second, 9*time.Second), "the renew deadline must be more than 1.2 x the retry period: 10s is not more than 1.2 x 9s"},
		"3 s lease":              {with(3*time.Second, 1500*time.Millisecond, 250*time.Millisecond), ""},
		"guard shut in between":  {with(3*time.Second, time.Second, 700*time.Millisecond), "700ms + 200ms + 2s + 200ms is more than 3s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := c.settings.Validate()
			switch {
			case c.wants == "" && err != nil:
				t.Errorf("got %v, want no error", err)
			case c.wants != "" && (err == nil || !strings.Contains(err.Error(), c.wants)):
				t.Errorf("got %v, want %q", err, c.wants)
			}
		})
	}
}

// TestRequestTimeout checks that both rules hold, whatever the durations are, and which timeout the
// defaults give.
func TestRequestTimeout(t *testing.T) {
	t.Parallel()
	got := DefaultSettings().RequestTimeout()
	assert.True(t, got == 3*time.Second && DefaultSettings().Margin() == time.Second, "the default is %s", got)
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int64Range(1, 3600).Draw(t, "lease")
		part := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(1, seconds*1000).Draw(t, name)) * time.Millisecond
		}
		s := Settings{Lease: time.Duration(seconds) * time.Second, Renew: part("renew"), Retry: part("retry")}
		if s.Validate() != nil {
			return
		}
		used := s.Retry + 2*s.RequestTimeout() + s.Margin()
		if used+s.Renew > s.Lease || used+Spare > s.Lease || s.RequestTimeout() > s.Renew {
			t.Fatalf("%+v leaves requests %s", s, s.RequestTimeout())
		}
	})
}

func TestIdentity(t *testing.T) {
	t.Setenv("POD_NAME", "pod-7")
	seen := map[string]bool{}
	for wanted, prefix := range map[string]string{"mine": "mine_", "": "pod-7_"} {
		for range 2 {
			id, err := Identity(wanted)
			assert.True(t, err == nil && strings.HasPrefix(id, prefix) && !seen[id],
				"the identity for %q is %q, %v: want a new one that begins with %s", wanted, id, err, prefix)
			seen[id] = true
		}
	}
	t.Setenv("POD_NAME", "")
	id, err := Identity("")
	assert.True(t, err == nil && !strings.HasPrefix(id, "_"), "the identity is %q, %v: want the host's name", id, err)
}
