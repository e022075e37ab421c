// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bugs puts bugs into Drover on purpose, so that tests can show that they find
// them. Each bug is a patch NAME.patch in this folder, whose first lines say what is wrong.
// Sources stay as they are: go build gets the patched files by -overlay.
//
// Start with WriteOverlay.
package bugs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// WriteOverlay writes into dir the files of the checkout at root with a bug in them, and
// returns the file to pass to go build, or go test, as -overlay.
func WriteOverlay(ctx context.Context, root, dir, name string) (overlay string, err error) {
	patch, err := os.ReadFile(filepath.Join(root, "test", "faults", "bugs", name+".patch"))
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for line := range strings.Lines(string(patch)) {
		path, found := strings.CutPrefix(strings.TrimSpace(line), "+++ b/")
		if !found {
			continue
		}
		from, to := filepath.Join(root, path), filepath.Join(dir, path)
		replace[from] = to
		content, err := os.ReadFile(from)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o700), os.WriteFile(to, content, 0o600)); err != nil {
			return "", err
		}
	}
	apply := exec.CommandContext(ctx, "patch", "-p1", "--fuzz=3", "--no-backup-if-mismatch", "-d", dir)
	apply.Stdin = bytes.NewReader(patch)
	if out, err := apply.CombinedOutput(); err != nil {
		return "", fmt.Errorf("bug %s: %w\n%s", name, err, out)
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	overlay = filepath.Join(dir, "overlay.json")
	return overlay, errors.Join(err, os.WriteFile(overlay, content, 0o600))
}
