// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"testing"

	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// TestAsPlainUser runs tests again whose machines then have the tests' own user.
func TestAsPlainUser(t *testing.T) {
	t.Parallel()
	contract := "TestContract/CreateTwice|StopForced|RestartOnce|KilledByHand|ListComplete|Secrets"
	if tier.IsFull() {
		contract = "TestContract"
	}
	framework.RunAsPlainUser(t, contract, "TestControllerKilledInStart", "TestInheritedDescriptors", "TestLogs")
}

// TestGuestAsPlainUser runs the tests again that reach guests.
func TestGuestAsPlainUser(t *testing.T) {
	t.Parallel()
	tier.Full(t, "it boots Linux three times and kills many controllers; TestAsPlainUser reaches machines by the same sockets")
	framework.RunWithGuestAsPlainUser(t, "TestLinux", "TestControllerKilled")
}
