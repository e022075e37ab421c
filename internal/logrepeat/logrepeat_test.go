// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package logrepeat

import (
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	clocktesting "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/test/assert"
)

var errRefused = errors.New("refused")

// TestRepeatedErrors checks that an error is logged once in a while, and that nothing else is dropped.
func TestRepeatedErrors(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		log  func(logr.Logger, *clocktesting.FakePassiveClock)
		want []string
	}{
		"the same error": {func(log logr.Logger, _ *clocktesting.FakePassiveClock) {
			for range 100 {
				log.Error(errRefused, "no list", "kind", "Pod")
			}
		}, []string{`"msg"="no list" "error"="refused" "kind"="Pod"`}},
		"once more after a while": {func(log logr.Logger, c *clocktesting.FakePassiveClock) {
			for range 3 {
				log.Error(errRefused, "no list")
			}
			c.SetTime(c.Now().Add(period))
			log.Error(errRefused, "no list")
		}, []string{`"msg"="no list" "error"="refused"`, `"msg"="no list" "error"="refused" "repeated"=2`}},
		"others": {func(log logr.Logger, _ *clocktesting.FakePassiveClock) {
			log.Error(errRefused, "no list")
			log.Error(errors.New("full"), "no list")
			log.Error(errRefused, "no list", "kind", "Pod")
			log.WithName("cache").Error(errRefused, "no list")
			log.WithValues("kind", "VM").Error(errRefused, "no list")
		}, []string{
			`"msg"="no list" "error"="refused"`, `"msg"="no list" "error"="full"`, `"msg"="no list" "error"="refused" "kind"="Pod"`,
			`"logger"="cache" "msg"="no list" "error"="refused"`, `"msg"="no list" "error"="refused" "kind"="VM"`,
		}},
		"what is not an error": {func(log logr.Logger, _ *clocktesting.FakePassiveClock) {
			log.Info("listed")
			log.Info("listed")
		}, []string{`"level"=0 "msg"="listed"`, `"level"=0 "msg"="listed"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []string
			c := clocktesting.NewFakePassiveClock(time.Unix(1000, 0))
			tc.log(New(funcr.New(func(prefix, line string) {
				if prefix != "" {
					line = `"logger"="` + prefix + `" ` + line
				}
				lines = append(lines, line)
			}, funcr.Options{}), c), c)
			assert.True(t, slices.Equal(lines, tc.want), "got  %q\nwant %q", lines, tc.want)
		})
	}
}

// TestBoundOfErrors checks that the number of errors that are remembered is bounded.
func TestBoundOfErrors(t *testing.T) {
	t.Parallel()
	recent := &recentErrors{clock: clocktesting.NewFakePassiveClock(time.Unix(1000, 0)), known: map[string]*occurrence{}}
	for n := range 10 * maxErrors {
		recent.recordError(strconv.Itoa(n))
	}
	assert.True(t, len(recent.known) <= maxErrors, "%d errors are remembered, want at most %d", len(recent.known), maxErrors)
}
