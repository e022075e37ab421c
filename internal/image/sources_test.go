// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// TestExplainRegistry checks that the words of a registry are not repeated.
func TestExplainRegistry(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	answer := &transport.Error{StatusCode: http.StatusUnauthorized, Errors: []transport.Diagnostic{{Code: secret, Message: secret, Detail: secret}}}
	if got := explainError(fmt.Errorf("%s: %w", secret, answer)).Error(); got != "the server answered 401 Unauthorized" {
		t.Errorf("it is explained as %q", got)
	}
}
