// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/base64"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestHasText checks that a secret is found at any position, in plain text and in base64.
func TestHasText(t *testing.T) {
	const secret, other = "drover-secret-5c1b", "drover-token-90ae"
	for before := range 7 {
		for after := range 4 {
			text := strings.Repeat("a", before) + secret + strings.Repeat("b", after)
			for name, form := range map[string]string{
				"plain": text, "standard": base64.StdEncoding.EncodeToString([]byte(text)), "raw": base64.RawStdEncoding.EncodeToString([]byte(text)),
			} {
				assert.True(t, hasText(form, secret), "%d bytes before and %d after, %s: the secret is not found in %q", before, after, name, form)
				assert.True(t, !hasText(form, other), "%d bytes before and %d after, %s: another secret is found in %q", before, after, name, form)
			}
		}
	}
}
