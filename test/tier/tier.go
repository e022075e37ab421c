// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tier says which tests run. The gate runs before each change lands, in minutes: make test.
// The full tier has all tests: make test-full.
package tier

import (
	"os"
	"testing"
)

// Env selects the full tier if it is "full".
const Env = "DROVER_TEST_TIER"

// IsFull reports whether the full tier runs. Tests with more cases in the full tier use it. Tests that
// run only in the full tier call Full.
func IsFull() bool { return os.Getenv(Env) == "full" }

// Full skips a test outside of the full tier. The reason says why the test costs too much for the
// gate, and which test the gate has instead.
func Full(t testing.TB, reason string) {
	t.Helper()
	if !IsFull() {
		t.Skipf("full tier only: %s", reason)
	}
}
