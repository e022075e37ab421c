// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/base64"
	"strings"
	"testing"
)

// TestHasText checks that a secret is found wherever it stands, as it is and in base64.
func TestHasText(t *testing.T) {
	for before := range 7 {
		for after := range 4 {
			text := strings.Repeat("a", before) + Secret + strings.Repeat("b", after)
			for name, form := range map[string]string{
				"plain": text, "standard": base64.StdEncoding.EncodeToString([]byte(text)), "raw": base64.RawStdEncoding.EncodeToString([]byte(text)),
			} {
				if !hasText(form, Secret) {
					t.Errorf("%d before and %d after it, %s: it is not found in %q", before, after, name, form)
				}
				if hasText(form, token) {
					t.Errorf("%d before and %d after it, %s: the token is found in %q", before, after, name, form)
				}
			}
		}
	}
}
