// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import "testing"

func TestShortID(t *testing.T) {
	for id, want := range map[string]string{
		"851671285a46d1f0c9": "851671285a46", "web": "web", "default/web-1a2b3c4d": "default/web-1a2b3c4d",
	} {
		if got := shortID(id); got != want {
			t.Errorf("shortID(%q) = %q, want %q", id, got, want)
		}
	}
}
