// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"testing"

	"cloudnative.tw/drover/test/framework"
)

// TestAsPlainUser runs the suites again whose machines then have the tests' own user.
func TestAsPlainUser(t *testing.T) {
	t.Parallel()
	framework.RunAsPlainUser(t, "TestContract", "TestControllerKilled", "TestControllerKilledInStart", "TestInheritedDescriptors")
}

// TestAgentAsPlainUser runs the tests again that reach guests.
func TestAgentAsPlainUser(t *testing.T) {
	t.Parallel()
	framework.RunWithGuestAsPlainUser(t, "TestAgent", "TestDial", "TestLogs")
}
