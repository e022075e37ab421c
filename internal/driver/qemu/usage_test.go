// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
)

// TestGuestMemory checks that memory counts as the guest sees it: it is less again after
// a program has freed some, which the host never sees.
func TestGuestMemory(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, port := e.linuxSpec(t)
	reach(t, d, spec, driver.StateRunning)
	report(t, port)
	const eaten = 120 << 20
	for _, mib := range []int{eaten >> 20, 0} {
		if _, err := get(t, port, fmt.Sprintf("/eat?mib=%d", mib)); err != nil {
			t.Fatal(err)
		}
		assert.Eventually(t, fmt.Sprintf("the guest uses %d MiB and a little", mib), func(t testing.TB) error {
			used, err := d.memory(t, spec)
			if err == nil && (used == 0 || (used > eaten) != (mib > 0)) {
				err = fmt.Errorf("it uses %d MiB", used>>20)
			}
			return err
		})
	}
	process, err := proc.ReadUsage(d.InstanceOf(spec.UID).PID())
	must(t, err)
	if process.MemoryBytes < eaten {
		t.Errorf("QEMU itself gave memory back, so that this test shows nothing: it has %d MiB", process.MemoryBytes>>20)
	}
	gone(t, d, spec)
}

func (d *Driver) memory(t testing.TB, spec driver.ServerSpec) (int64, error) {
	t.Helper()
	samples, err := d.Usage(t.Context(), spec.UID)
	if err != nil || len(samples) != 1 {
		return 0, fmt.Errorf("there are %d samples: %w", len(samples), err)
	}
	return samples[0].MemoryBytes, nil
}
