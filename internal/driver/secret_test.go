// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

const text = "hunter2"

func TestSecretDoesNotPrint(t *testing.T) {
	secret := NewSecret(text)
	spec := ServerSpec{Name: "vm", UserData: secret, NetworkData: secret}
	for name, value := range map[string]any{
		"the secret":           secret,
		"a pointer to it":      &secret,
		"a spec that holds it": spec,
		"a pointer to a spec":  &spec,
		"a slice":              []Secret{secret},
		"a map":                map[string]Secret{"a": secret},
		"as a map's key":       map[Secret]int{secret: 1},
		"an error about it":    fmt.Errorf("bad data %v", secret),
	} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10.3s", "%T"} {
			got := fmt.Sprintf(verb, value)
			assert.True(t, !strings.Contains(got, text) && !strings.Contains(got, fmt.Sprintf("%x", text)), "%s under %s shows the text: %s", name, verb, got)
		}
	}
	got := fmt.Sprintf("%v|%q|%#v", secret, secret, secret)
	assert.True(t, got == "[redacted]|[redacted]|[redacted]", "got %s, want [redacted] under every verb", got)
}

func TestSecretDoesNotMarshalOrLog(t *testing.T) {
	spec := ServerSpec{Name: "vm", UserData: NewSecret(text)}
	encoded, err := json.Marshal(spec)
	assert.NoError(t, err)
	var logged bytes.Buffer
	slog.New(slog.NewTextHandler(&logged, nil)).Info("spec", "spec", spec, "userData", spec.UserData)
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("spec", "spec", spec, "userData", spec.UserData)
	for name, got := range map[string]string{"JSON": string(encoded), "the log": logged.String()} {
		assert.True(t, !strings.Contains(got, text) && strings.Contains(got, "[redacted]"), "in %s: got %s, want [redacted] for the text", name, got)
	}
}

func TestSecretReveals(t *testing.T) {
	assert.Equal(t, "Reveal", NewSecret(text).Reveal(), text)
	assert.True(t, (Secret{}).IsZero() && NewSecret("").IsZero() && !NewSecret(text).IsZero(), "IsZero must be true without text, and only then")
	assert.True(t, reflect.DeepEqual(NewSecret(text), NewSecret(text)), "secrets of one text must be equal")
}
