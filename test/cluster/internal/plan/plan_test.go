// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestReadRefuses checks that Read refuses files by which a clean-up would remove things of others.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"", "{}", `{"name": ""}`, `{"name": "/"}`, `{"name": "system.slice"}`, `{"name": "drover-cluster-"}`,
		`{"name": "drover-cluster-/../.."}`,
	} {
		dir := t.TempDir()
		assert.NoError(t, os.WriteFile(filepath.Join(dir, "plan.json"), []byte(content), 0o600))
		p, err := Read(dir)
		assert.True(t, err != nil, "%s gives %+v", content, p)
	}
	p := Plan{Name: NamePrefix + "1-2", Dir: t.TempDir()}
	assert.NoError(t, p.Write())
	got, err := Read(p.Dir)
	assert.True(t, err == nil && got.Name == p.Name, "got %+v, %v", got, err)
}
