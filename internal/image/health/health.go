// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package health has the HEALTHCHECK of container images: its settings, and the meaning of its results. Both are as in
// Docker Engine.
//
// Start with Check.
package health

import (
	"encoding/json"
	"slices"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Check is a command that is run again and again in a container. The exit code 0 means that the container is healthy.
type Check struct {
	Args []string `json:"args"`
	// Interval is the time between two checks, and before the first one. Timeout is the time after which a check fails.
	Interval time.Duration `json:"interval"`
	Timeout  time.Duration `json:"timeout"`
	// StartPeriod begins with the container. Within it, failures before the first success do not count, and
	// StartInterval takes the place of Interval until then.
	StartPeriod   time.Duration `json:"startPeriod,omitempty"`
	StartInterval time.Duration `json:"startInterval"`
	// Retries is how many failures in a row make the container unhealthy.
	Retries int `json:"retries"`
}

// minInterval bounds how often a container is checked, since an image may ask for a check each nanosecond.
const minInterval = 100 * time.Millisecond

// Parse returns the check in the configuration of an image, nil if it has none.
func Parse(config []byte) (*Check, error) {
	var file struct {
		Config struct {
			Shell       []string
			Healthcheck struct {
				v1.HealthConfig

				StartInterval time.Duration // which HealthConfig lacks
			}
		} `json:"config"`
	}
	if err := json.Unmarshal(config, &file); err != nil {
		return nil, err
	}
	c := file.Config.Healthcheck
	args := argumentsOf(c.Test, file.Config.Shell)
	if len(args) == 0 {
		return nil, nil //nolint:nilnil // There is nothing to check.
	}
	return &Check{
		Args: args, Retries: positiveOr(c.Retries, 3), Timeout: positiveOr(c.Timeout, 30*time.Second), StartPeriod: max(0, c.StartPeriod),
		Interval:      max(minInterval, positiveOr(c.Interval, 30*time.Second)),
		StartInterval: max(minInterval, positiveOr(c.StartInterval, 5*time.Second)),
	}, nil
}

// argumentsOf returns the command line of a test. It is empty for NONE, and for a kind that Docker Engine does not know.
func argumentsOf(test, shell []string) []string {
	switch {
	case len(test) > 1 && test[0] == "CMD":
		return test[1:]
	case len(test) > 1 && test[0] == "CMD-SHELL" && len(shell) > 0:
		return slices.Concat(shell, test[1:])
	case len(test) > 1 && test[0] == "CMD-SHELL":
		return append([]string{"/bin/sh", "-c"}, test[1:]...)
	}
	return nil
}

func positiveOr[T int | time.Duration](value, otherwise T) T {
	if value > 0 {
		return value
	}
	return otherwise
}

// State says whether a container is healthy, by Docker's names. It is empty for a container without a check.
type State string

// States of a container.
const (
	Starting  State = "starting"
	Healthy   State = "healthy"
	Unhealthy State = "unhealthy"
)

// Explain returns why a container is not ready, "" if it is. The text does not have the check's output, which is the guest's.
func (s State) Explain() string {
	switch s {
	case Starting:
		return "the HEALTHCHECK of the image has not succeeded yet"
	case Unhealthy:
		return "the HEALTHCHECK of the image fails"
	default: // healthy, without a check, or from a machine that sends what it likes
		return ""
	}
}

// Results are the results of the checks of a container so far.
type Results struct {
	State    State
	failures int // in a row
}

// Record adds the result of a check that began at an age of the container.
func (r *Results) Record(c Check, age time.Duration, succeeded bool) {
	switch {
	case succeeded:
		r.State, r.failures = Healthy, 0
		return
	case r.State == Starting && age < c.StartPeriod:
		return
	}
	if r.failures++; r.failures >= c.Retries {
		r.State = Unhealthy
	}
}

// Interval returns the time from a check to the next one, at an age of the container.
func (r *Results) Interval(c Check, age time.Duration) time.Duration {
	if r.State == Starting && age < c.StartPeriod {
		return c.StartInterval
	}
	return c.Interval
}
