// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"io"
)

const redacted = "[redacted]"

// NewSecret returns text as a Secret.
func NewSecret(text string) Secret { return Secret{text: text} }

// Reveal returns the text. The result must not get into a log, event, status,
// command line or world-readable file.
func (s Secret) Reveal() string { return s.text }

// IsZero reports whether there is no text.
func (s Secret) IsZero() bool { return s.text == "" }

// Format writes "[redacted]" under every verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// String returns "[redacted]".
func (s Secret) String() string { return redacted }

// MarshalText returns "[redacted]".
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
