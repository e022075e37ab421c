// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package assert

import (
	"errors"
	"strings"
	"testing"
)

// TestAssertions checks which values each assertion accepts, and its message for the others.
func TestAssertions(t *testing.T) {
	t.Parallel()
	kind := errors.New("refused")
	for name, c := range map[string]struct {
		assert func(t testing.TB)
		says   []string // empty if the assertion holds
	}{
		"true":              {func(t testing.TB) { True(t, true, "never") }, nil},
		"false":             {func(t testing.TB) { True(t, false, "%d of %d", 1, 2) }, []string{"1 of 2"}},
		"required":          {func(t testing.TB) { Require(t, true, "never") }, nil},
		"required, missing": {func(t testing.TB) { Require(t, false, "%d of %d", 1, 2); t.Log("goes on") }, []string{"1 of 2"}},
		"equal":             {func(t testing.TB) { Equal(t, "count", 1, 1) }, nil},
		"other number":      {func(t testing.TB) { Equal(t, "count", 1, 2) }, []string{"count: got 1, want 2"}},
		"other text":        {func(t testing.TB) { Equal(t, "name", "a", "b ") }, []string{`name: got "a", want "b "`}},
		"contained":         {func(t testing.TB) { Contains(t, "log", "a b", "b") }, nil},
		"not contained":     {func(t testing.TB) { Contains(t, "log", "a b", "c") }, []string{`log: got "a b", want "c" in it`}},
		"kind of error":     {func(t testing.TB) { ErrorIs(t, "call", kind, kind, "refused") }, nil},
		"no error":          {func(t testing.TB) { ErrorIs(t, "call", nil, kind) }, []string{"call", "refused"}},
		"unwanted error":    {func(t testing.TB) { ErrorIs(t, "call", kind, nil) }, []string{"call", "refused"}},
		"other words":       {func(t testing.TB) { ErrorIs(t, "call", kind, kind, "denied") }, []string{`"denied"`}},
		"said":              {func(t testing.TB) { ErrorSays(t, "call", kind, "ref") }, nil},
		"said otherwise":    {func(t testing.TB) { ErrorSays(t, "call", kind, "denied") }, []string{`"denied"`}},
		"said for nothing":  {func(t testing.TB) { ErrorSays(t, "call", kind, "") }, []string{"refused"}},
		"reported error":    {func(t testing.TB) { ReportError(t, kind) }, []string{"refused"}},
		"nothing to report": {func(t testing.TB) { ReportError(t, nil) }, nil},
		"made error":        {func(t testing.TB) { NoError(t, ErrorUnless(false, "%d of %d", 1, 2)) }, []string{"1 of 2"}},
		"made no error":     {func(t testing.TB) { NoError(t, ErrorUnless(true, "never")) }, nil},
		"fatal error":       {func(t testing.TB) { NoError(t, kind); t.Log("goes on") }, []string{"refused"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := try(t, func(t testing.TB) error { c.assert(t); return nil })
			if (err == nil) != (c.says == nil) || err != nil && strings.Contains(err.Error(), "goes on") {
				t.Errorf("got %v, want %q", err, c.says)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("got %v, want %q", err, c.says)
				}
			}
		})
	}
}
