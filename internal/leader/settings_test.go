// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"strings"
	"testing"
	"time"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	with := func(lease, renew, retry time.Duration) Settings {
		s := DefaultSettings()
		s.Lease, s.Renew, s.Retry = lease, renew, retry
		return s
	}
	for name, c := range map[string]struct {
		settings Settings
		wants    string // in the error; empty: none
	}{
		"defaults":      {DefaultSettings(), ""},
		"the tutorials": {with(60*time.Second, 15*time.Second, 5*time.Second), ""},
		"too tight": {
			with(3*time.Second, 2900*time.Millisecond, 500*time.Millisecond),
			"retry period + renew deadline + 2 x request timeout + margin <= lease does not hold: 500ms + 2.9s + 2 x 1s + 1s = 6.4s is more than 3s",
		},
		"a second too long":      {with(15*time.Second, 11*time.Second, 2*time.Second), "= 16s is more than 15s"},
		"not whole seconds":      {with(15500*time.Millisecond, 10*time.Second, 2*time.Second), "the lease is 15.5s: it must be whole seconds"},
		"the longest":            {with(time.Hour, 10*time.Second, 2*time.Second), ""},
		"longer":                 {with(time.Hour+time.Second, 10*time.Second, 2*time.Second), "the lease is 1h0m1s: it must be at most 1h0m0s"},
		"no lease":               {with(0, 10*time.Second, 2*time.Second), "the lease is 0s"},
		"no retries":             {with(15*time.Second, 10*time.Second, 0), "the retry period is 0s"},
		"renewed less than once": {with(60*time.Second, 10*time.Second, 9*time.Second), "renew deadline > 1.2 x retry period does not hold"},
		"negative margin":        {Settings{Lease: time.Second, Renew: 2, Retry: 1, Request: 1, Margin: -1}, "margin"},
		"3 s lease": {Settings{
			Lease: 3 * time.Second, Renew: 1500 * time.Millisecond, Retry: 250 * time.Millisecond,
			Request: 250 * time.Millisecond, Margin: 250 * time.Millisecond,
		}, ""},
		"guard shut in between": {Settings{
			Lease: 3 * time.Second, Renew: time.Second, Retry: 500 * time.Millisecond,
			Request: 250 * time.Millisecond, Margin: 500 * time.Millisecond,
		}, "retry period + 2 x request timeout + margin + 2s <= lease does not hold"},
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

func TestIdentity(t *testing.T) {
	t.Setenv("POD_NAME", "pod-7")
	seen := map[string]bool{}
	for wanted, prefix := range map[string]string{"mine": "mine_", "": "pod-7_"} {
		for range 2 {
			id, err := Identity(wanted)
			if err != nil || !strings.HasPrefix(id, prefix) || seen[id] {
				t.Errorf("the identity for %q is %q, %v: want a new one that begins with %s", wanted, id, err, prefix)
			}
			seen[id] = true
		}
	}
	t.Setenv("POD_NAME", "")
	if id, err := Identity(""); err != nil || strings.HasPrefix(id, "_") {
		t.Errorf("the identity is %q, %v: want the host's name", id, err)
	}
}
