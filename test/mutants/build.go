// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writeOverlay rewrites the files into the work folder, with all their mutants. It
// returns these, and the name of a file for go build -overlay.
func (c *config) writeOverlay(ctx context.Context) ([]Mutant, string, error) {
	sources, err := loadSources(ctx, c.root, c.files)
	if err != nil {
		return nil, "", err
	}
	var all []Mutant
	replace := map[string]string{}
	for _, s := range sources {
		text, mutants := rewrite(s, len(all))
		all = append(all, mutants...)
		to := filepath.Join(c.work, strings.ReplaceAll(s.name, "/", "_"))
		if err := os.WriteFile(to, text, 0o600); err != nil {
			return nil, "", err
		}
		replace[filepath.Join(c.root, s.name)] = to
	}
	numberMutants(all)
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return nil, "", err
	}
	overlay := filepath.Join(c.work, "overlay.json")
	return all, overlay, os.WriteFile(overlay, content, 0o600)
}

// build builds the test binary of each suite, with all mutants.
func (c *config) build(ctx context.Context, overlay string) error {
	for n := range c.suites {
		s := &c.suites[n]
		s.binary = filepath.Join(c.work, strings.ReplaceAll(s.folder, "/", "_")+".test")
		if _, err := runGo(ctx, c.root, "test", "-c", "-vet", "off", "-overlay", overlay, "-o", s.binary, "./"+s.folder); err != nil {
			return fmt.Errorf("suite %s: %w", s.folder, err)
		}
	}
	return nil
}
