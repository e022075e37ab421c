// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/assert"
)

func TestCheckUID(t *testing.T) {
	for uid, good := range map[string]bool{
		"f81d4fae-7dec-11d0-a765-00a0c91e6bf6": true,
		"uid-1":                                true,
		"A_b":                                  true,
		strings.Repeat("a", 128):               true,
		strings.Repeat("a", 129):               false,
		"":                                     false,
		".":                                    false,
		"..":                                   false,
		"../x":                                 false,
		"a/b":                                  false,
		"a.b":                                  false,
		"-rf":                                  false,
		"a\n":                                  false,
		"a\x00":                                false,
		"é":                                    false,
	} {
		err := CheckUID(types.UID(uid))
		assert.True(t, good == (err == nil) && (err == nil || errors.Is(err, ErrInvalid)), "CheckUID(%q): got %v, want it good: %v", uid, err, good)
	}
}

func TestUniqueUIDs(t *testing.T) {
	got, err := UniqueUIDs([]types.UID{"b", "a", "b"})
	assert.True(t, err == nil && slices.Equal(got, []types.UID{"b", "a"}), "got %v, %v", got, err)
	got, err = UniqueUIDs([]types.UID{"a", "../x"})
	assert.True(t, errors.Is(err, ErrInvalid), "got %v, %v", got, err)
}

type bare struct{ Driver }

type named struct {
	Driver
	id string
}

func (n named) EngineID(context.Context) (string, error) { return n.id, nil }

type decorated struct{ Driver }

func (d decorated) Unwrap() Driver { return d.Driver }

func TestAs(t *testing.T) {
	for name, c := range map[string]struct {
		d    Driver
		want string
	}{
		"itself":               {named{id: "a"}, "a"},
		"decorated":            {decorated{named{id: "a"}}, "a"},
		"decorated twice":      {decorated{decorated{named{id: "a"}}}, "a"},
		"none":                 {bare{}, ""},
		"none, decorated":      {decorated{bare{}}, ""},
		"nil":                  {nil, ""},
		"decorator of nothing": {decorated{}, ""},
		"hidden by no Unwrap":  {bare{named{id: "a"}}, ""},
		"the outermost":        {decorated{named{Driver: named{id: "b"}, id: "a"}}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			identifier, ok := As[Identifier](c.d)
			got := ""
			if ok {
				got, _ = identifier.EngineID(t.Context())
			}
			assert.True(t, ok == (c.want != "") && got == c.want, "got %q (%v), want %q", got, ok, c.want)
		})
	}
}
