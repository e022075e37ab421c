// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bugs

import (
	"os/exec"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestEdits checks that every edit still applies to the sources, and that the edited sources compile:
// otherwise only long tests compile them.
func TestEdits(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	assert.NoError(t, err)
	overlay, err := WriteOverlay(root, t.TempDir())
	assert.NoError(t, err)
	build := exec.CommandContext(t.Context(), "go", "build", "-tags=faults", "-overlay="+overlay, "./internal/...")
	build.Dir = root
	out, err := build.CombinedOutput()
	assert.True(t, err == nil, "%v:\n%s", err, out)
}
