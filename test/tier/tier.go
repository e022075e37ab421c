// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tier says how much a run of the tests covers. The gate is what runs before each change
// lands, in minutes: make test. The full tier is everything: make test-full.
package tier

import (
	"os"
	"testing"
)

// Env selects the full tier if it is "full".
const Env = "DROVER_TEST_TIER"

// IsFull reports whether the full tier runs. Tests that explore more cases in it use it; others
// call Full.
func IsFull() bool { return os.Getenv(Env) == "full" }

// Full skips a test outside of the full tier. The reason says why the test costs too much for the
// gate, and what the gate keeps in its place.
func Full(t testing.TB, reason string) {
	t.Helper()
	if !IsFull() {
		t.Skipf("full tier only: %s", reason)
	}
}
