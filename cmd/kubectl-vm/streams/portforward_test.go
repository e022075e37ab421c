// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import "testing"

func TestParseForward(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Forward{
		"8080:80":     {8080, 80},
		"80":          {80, 80},
		":80":         {0, 80},
		"0:80":        {0, 80},
		"65535:65535": {65535, 65535},
	} {
		if got, err := ParseForward(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"", ":", "0", "80:", "80:0", "65536:80", "80:65536", "-1:80", "a:80", "1:2:3", "+1:80"} {
		if got, err := ParseForward(text); err == nil {
			t.Errorf("%q is accepted as %+v", text, got)
		}
	}
}
