// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failure

import (
	"errors"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestOfStart checks that the cause is in the last line, which stays visible in a terminal.
func TestOfStart(t *testing.T) {
	t.Parallel()
	cause, cleanup := errors.New("node-2 lacks a route"), errors.New("a mount is busy")
	tests := map[string]struct {
		cleanup error
		printed string
		want    string
	}{
		"with logs":           {nil, "==> a.log\nfirst\nlast\n", "start a cluster: node-2 lacks a route"},
		"without logs":        {nil, "", "start a cluster: node-2 lacks a route"},
		"that is not removed": {cleanup, "==> a.log\nlast\n", "start a cluster: node-2 lacks a route; it is not removed either: a mount is busy"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := OfStart(cause, tc.cleanup, tc.printed)
			lines := strings.Split(err.Error(), "\n")
			assert.Equal(t, "the last line", lines[len(lines)-1], tc.want)
			if !strings.Contains(err.Error(), strings.TrimSpace(tc.printed)) || !errors.Is(err, cause) || tc.cleanup != nil && !errors.Is(err, tc.cleanup) {
				t.Errorf("the error lacks a part: %v", err)
			}
		})
	}
}
