// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"testing"
)

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
		"itself":                {named{id: "a"}, "a"},
		"decorated":             {decorated{named{id: "a"}}, "a"},
		"decorated twice":       {decorated{decorated{named{id: "a"}}}, "a"},
		"none":                  {bare{}, ""},
		"none, decorated":       {decorated{bare{}}, ""},
		"nil":                   {nil, ""},
		"decorator of nothing":  {decorated{}, ""},
		"hidden by no Unwrap":   {bare{named{id: "a"}}, ""},
		"the outermost is what": {decorated{named{Driver: named{id: "b"}, id: "a"}}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			identifier, ok := As[Identifier](c.d)
			got := ""
			if ok {
				got, _ = identifier.EngineID(t.Context())
			}
			if ok != (c.want != "") || got != c.want {
				t.Errorf("got %q (%v), want %q", got, ok, c.want)
			}
		})
	}
}
