// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bugs

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"testing"
)

// TestEdits checks that every edit still finds its place in the sources, and that what comes of them can be
// parsed: only long tests build it.
func TestEdits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := WriteOverlay(filepath.Join("..", ".."), dir); err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("it has written %q, %v", sources, err)
	}
	for _, source := range sources {
		if _, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.SkipObjectResolution); err != nil {
			t.Error(err)
		}
	}
}
