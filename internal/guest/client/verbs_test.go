// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"testing"

	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/test/assert"
)

// TestVerbs checks that a guest gets no request with a verb that it lacks, that an agent without a list has the first verbs, and that
// an impossible list is refused.
func TestVerbs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer string
		// missing is set if the guest lacks "interfaces", and kind otherwise to the kind of the error.
		missing bool
		kind    error
	}{
		"it has it":          {`{"verbs": ["hello", "interfaces"]}`, false, nil},
		"it lacks it":        {`{"verbs": ["hello", "exec"]}`, true, nil},
		"it knows no hello":  {`{"reason": "failed", "message": "unknown"}`, false, ErrRefused}, // of the call itself
		"it lists a command": {`{"verbs": ["\u001b[2J"]}`, false, ErrBadAnswer},
	} {
		err := assert.ErrorOf(dialUnasked(t, answering(frame(t, wire.FrameResponse, c.answer))).Interfaces(t.Context()))
		missing, isMissing := errors.AsType[*MissingVerbError](err)
		assert.True(t, isMissing == c.missing && (!isMissing || missing.Verb == wire.OpInterfaces), "%s: %v", name, err)
		assert.True(t, c.missing || errors.Is(err, c.kind), "%s: got %v, want %v", name, err, c.kind)
	}
}
