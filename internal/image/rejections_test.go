// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// TestRejectionsEvictOldest checks that a new entry at the limit evicts the oldest only.
func TestRejectionsEvictOldest(t *testing.T) {
	t.Parallel()
	var r rejections
	start := time.Now()
	for n := range maxRejections + 1 {
		r.recordContent(strconv.Itoa(n), "1", start.Add(time.Duration(n)*time.Second), errors.New("no disk"))
	}
	now := start.Add(time.Hour)
	if err := r.findContent("0", "1", now); err != nil {
		t.Errorf("the oldest is kept: %v", err)
	}
	for n := 1; n <= maxRejections; n++ {
		if r.findContent(strconv.Itoa(n), "1", now) == nil {
			t.Fatalf("entry %d is forgotten", n)
		}
	}
}

// TestExplainRegistry checks that the words of a registry are not repeated.
func TestExplainRegistry(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	answer := &transport.Error{StatusCode: http.StatusUnauthorized, Errors: []transport.Diagnostic{{Code: secret, Message: secret, Detail: secret}}}
	if got := explainError(fmt.Errorf("%s: %w", secret, answer)).Error(); got != "the server answered 401 Unauthorized" {
		t.Errorf("it is explained as %q", got)
	}
}
