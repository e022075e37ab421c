// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

// CheckSecrets checks that no secret is in a readable place (Confidential). Both maps are keyed by a description.
func CheckSecrets(secrets map[string]string, readable map[string]any) (broken []Violation, err error) {
	for where, object := range readable {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		for name, secret := range secrets {
			if hasText(string(text), secret) {
				broken = append(broken, Broken(Confidential, "%s is in %s", name, where))
			}
		}
	}
	return broken, nil
}

// hasText reports whether a text contains another one, as it is or in base64.
func hasText(text, wanted string) bool {
	return slices.ContainsFunc(append(base64Forms(wanted), wanted), func(form string) bool { return strings.Contains(text, form) })
}

// base64Forms returns the three encodings that a text can have inside a longer base64 text, one for each
// offset. The first and last characters, which depend on the neighbouring bytes, are left out.
func base64Forms(text string) []string {
	var all []string
	for shift := range 3 {
		encoded := base64.RawStdEncoding.EncodeToString([]byte(strings.Repeat("x", shift) + text))
		begin, end := (shift*8+5)/6, (shift+len(text))*8/6
		all = append(all, encoded[begin:end])
	}
	return all
}
