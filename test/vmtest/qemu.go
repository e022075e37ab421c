// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"os/exec"
	"testing"
)

// QEMUBinary returns the path of the QEMU that tests run.
func QEMUBinary(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		t.Fatalf("the tests need QEMU, which hack/qemu.sh installs: %v", err)
	}
	return path
}

// RunQEMUImg runs qemu-img and returns what it printed.
func RunQEMUImg(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "qemu-img", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("qemu-img %v (hack/qemu.sh installs it): %v\n%s", args, err, out)
	}
	return string(out)
}
