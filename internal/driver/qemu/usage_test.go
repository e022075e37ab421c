// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"testing"

	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
)

// checkMemory checks that memory counts as the guest sees it: it is less again after a program has
// freed some, which the host never sees.
func (g *linuxGuest) checkMemory(t *testing.T) {
	const eaten = 120 << 20
	for _, mib := range []int{eaten >> 20, 0} {
		g.ask(t, fmt.Sprintf("/eat?mib=%d", mib))
		assert.Eventually(t, fmt.Sprintf("the guest uses %d MiB and a little", mib), func(t testing.TB) error {
			samples, err := g.d.Usage(t.Context(), g.spec.UID)
			assert.NoError(t, err)
			if used := samples[0].MemoryBytes; used == 0 || (used > eaten) != (mib > 0) {
				return fmt.Errorf("it uses %d MiB", used>>20)
			}
			return nil
		})
	}
	process, err := proc.ReadUsage(g.d.InstanceOf(g.spec.UID).PID())
	assert.NoError(t, err)
	if process.MemoryBytes < eaten {
		t.Errorf("QEMU itself gave memory back, so that this test shows nothing: it has %d MiB", process.MemoryBytes>>20)
	}
}
