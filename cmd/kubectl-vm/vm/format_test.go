// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

func TestPortTextInBrackets(t *testing.T) {
	if got := PortText("::1", 8080, 80, api.ProtocolTCP); got != "[::1]:8080:80" {
		t.Errorf("got %s", got)
	}
}
