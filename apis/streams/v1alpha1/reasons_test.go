// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestSplitReason(t *testing.T) {
	t.Parallel()
	for message, want := range map[string][2]string{
		"ServerStopped: the server has stopped": {"ServerStopped", "the server has stopped"},
		"Invalid: port: 0":                      {"Invalid", "port: 0"},
		"error: no":                             {"", "error: no"},
		"some text: more":                       {"", "some text: more"},
		"Word":                                  {"", "Word"},
		": x":                                   {"", ": x"},
		"":                                      {"", ""},
	} {
		if reason, rest := SplitReason(message); reason != metav1.StatusReason(want[0]) || rest != want[1] {
			t.Errorf("%q is %q and %q", message, reason, rest)
		}
	}
}
