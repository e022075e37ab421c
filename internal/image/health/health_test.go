// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"reflect"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// TestParse checks that a check of an image has Docker's meaning and defaults.
func TestParse(t *testing.T) {
	t.Parallel()
	defaults := Check{Interval: 30 * time.Second, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3}
	with := func(args []string, change func(*Check)) *Check {
		c := defaults
		c.Args = args
		if change != nil {
			change(&c)
		}
		return &c
	}
	for name, c := range map[string]struct {
		config string
		want   *Check
	}{
		"no check":          {`{"Cmd": ["sh"]}`, nil},
		"null":              {`{"Healthcheck": null}`, nil},
		"NONE":              {`{"Healthcheck": {"Test": ["NONE"], "Interval": 1}}`, nil},
		"empty test":        {`{"Healthcheck": {"Test": []}}`, nil},
		"no command":        {`{"Healthcheck": {"Test": ["CMD"]}}`, nil},
		"unknown kind":      {`{"Healthcheck": {"Test": ["HTTP", "/"]}}`, nil},
		"CMD":               {`{"Healthcheck": {"Test": ["CMD", "a", "-b"]}}`, with([]string{"a", "-b"}, nil)},
		"CMD-SHELL":         {`{"Healthcheck": {"Test": ["CMD-SHELL", "a || exit 1"]}}`, with([]string{"/bin/sh", "-c", "a || exit 1"}, nil)},
		"shell of image":    {`{"Shell": ["/bin/bash", "-ec"], "Healthcheck": {"Test": ["CMD-SHELL", "a"]}}`, with([]string{"/bin/bash", "-ec", "a"}, nil)},
		"CMD without shell": {`{"Shell": ["/bin/bash", "-ec"], "Healthcheck": {"Test": ["CMD", "a"]}}`, with([]string{"a"}, nil)},
		"all values": {
			`{"Healthcheck": {"Test": ["CMD", "a"], "Interval": 1000000000, "Timeout": 2000000000, "StartPeriod": 3000000000, "StartInterval": 4000000000, "Retries": 5}}`,
			&Check{Args: []string{"a"}, Interval: time.Second, Timeout: 2 * time.Second, StartPeriod: 3 * time.Second, StartInterval: 4 * time.Second, Retries: 5},
		},
		"too often": {`{"Healthcheck": {"Test": ["CMD", "a"], "Interval": 1, "StartInterval": 1}}`, with([]string{"a"}, func(c *Check) { c.Interval, c.StartInterval = minInterval, minInterval })},
		"negative":  {`{"Healthcheck": {"Test": ["CMD", "a"], "Interval": -1, "Timeout": -1, "StartPeriod": -1, "StartInterval": -1, "Retries": -1}}`, with([]string{"a"}, nil)},
	} {
		got, err := Parse([]byte(`{"config": ` + c.config + `}`))
		assert.True(t, err == nil && reflect.DeepEqual(got, c.want), "%s: the check is %+v, %v, want %+v", name, got, err, c.want)
	}
	assert.ErrorSays(t, "a text as interval", assert.ErrorOf(Parse([]byte(`{"config": {"Healthcheck": {"Interval": "30s"}}}`))), "cannot unmarshal")
}

// TestResults checks which results make a container healthy and unhealthy, and when the next check is due.
func TestResults(t *testing.T) {
	t.Parallel()
	c := Check{Interval: 30 * time.Second, StartPeriod: time.Minute, StartInterval: 5 * time.Second, Retries: 2}
	r := Results{State: Starting}
	for i, step := range []struct {
		age       time.Duration
		succeeded bool
		state     State
		interval  time.Duration
	}{
		{10 * time.Second, false, Starting, c.StartInterval},
		{15 * time.Second, false, Starting, c.StartInterval}, // does not count
		{61 * time.Second, false, Starting, c.Interval},
		{91 * time.Second, false, Unhealthy, c.Interval},
		{30 * time.Second, true, Healthy, c.Interval}, // though within the start period
		{40 * time.Second, false, Healthy, c.Interval},
		{50 * time.Second, true, Healthy, c.Interval},
		{52 * time.Second, false, Healthy, c.Interval}, // the success has ended the row
		{54 * time.Second, false, Unhealthy, c.Interval},
	} {
		r.Record(c, step.age, step.succeeded)
		assert.True(t, r.State == step.state && r.Interval(c, step.age) == step.interval, "after step %d it is %s, and the next check is due in %s", i, r.State, r.Interval(c, step.age))
	}
}
