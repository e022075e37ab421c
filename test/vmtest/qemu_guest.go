// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// BootGuest assembles hack/guest/boot.s into an image of dir. The letter ends
// its banner; a stubborn guest ignores the power button.
func BootGuest(t testing.TB, dir, letter string, stubborn bool) string {
	t.Helper()
	root, err := repoRoot()
	if err != nil {
		t.Fatal(err)
	}
	deaf := "0"
	if stubborn {
		deaf = "1"
	}
	path := filepath.Join(dir, "boot-"+letter+deaf+".img")
	out, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "boot-guest.sh"), path, letter, deaf).CombinedOutput()
	if err != nil {
		t.Fatalf("assembling the guest: %v\n%s", err, out)
	}
	return path
}
