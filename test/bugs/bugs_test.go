// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bugs

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// TestEdits checks that every edit still finds its place in the sources, and that what comes of them can be
// compiled: only long tests run it.
func TestEdits(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := WriteOverlay(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-tags=faults", "-overlay="+overlay, "./internal/...")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}
