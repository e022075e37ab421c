// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

func TestPortTextInBrackets(t *testing.T) {
	got := PortText("::1", 8080, 80, api.ProtocolTCP)
	assert.True(t, got == "[::1]:8080:80", "got %s", got)
}
