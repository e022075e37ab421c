// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"os"
	"path/filepath"
	"testing"
)

// TestReadRefuses checks that no file makes a clean-up remove what is no cluster's.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	for _, content := range []string{
		"", "{}", `{"name": ""}`, `{"name": "/"}`, `{"name": "system.slice"}`, `{"name": "drover-cluster-"}`,
		`{"name": "drover-cluster-/../.."}`,
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "plan.json"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if p, err := Read(dir); err == nil {
			t.Errorf("%s gives %+v", content, p)
		}
	}
	p := Plan{Name: NamePrefix + "1-2", Dir: t.TempDir()}
	if err := p.Write(); err != nil {
		t.Fatal(err)
	}
	if got, err := Read(p.Dir); err != nil || got.Name != p.Name {
		t.Errorf("got %+v, %v", got, err)
	}
}
