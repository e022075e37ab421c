// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
)

// TestEventsOfOddReasons checks that a reason, which anyone may write, is counted in characters and
// obeyed by no terminal.
func TestEventsOfOddReasons(t *testing.T) {
	events := []corev1.Event{{Reason: "äöüäöü", Message: "one"}, {Reason: "\x1b[31mé", Message: "two"}}
	var b strings.Builder
	writeEvents(&b, kit.Terminal{Width: 40}, events, kittest.Now)
	want := "\nLast events:\n  -   äöüäöü   one\n  -   ?[31mé   two\n"
	assert.True(t, b.String() == want, "got %q, want %q", b.String(), want)
}
