// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package bugs seeds bugs in Drover, so that tests can show that they find them. It does not
// change the sources: WriteOverlay writes copies with all bugs for go build -overlay. In a
// program that is built with the overlay, an environment variable enables one of the bugs.
//
// Start with All in list.go.
package bugs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Variable is the environment variable that names the bug to enable.
const Variable = "DROVER_SEEDED_BUG"

var enabled = os.Getenv(Variable)

// IsEnabled reports whether a bug is enabled. It is called by the code that an overlay adds.
func IsEnabled(name string) bool { return enabled == name }

// IsSeeded reports whether any bug is enabled.
func IsSeeded() bool { return enabled != "" }

// Bug is a change of source files that tests must find.
type Bug struct {
	Name string
	// Rules are the numbers of the rules that schedules break with the bug, separated by "|". It
	// is empty if only other tests find the bug.
	Rules string
	// Edits are the changes of the sources.
	Edits []Edit
}

// Edit replaces a text that occurs once in a file.
type Edit struct{ File, Old, New string }

// WriteOverlay writes the sources with all bugs into dir, and returns the name of the file
// for go build -overlay. root is the module's folder.
func WriteOverlay(root, dir string) (string, error) {
	changed := map[string]string{}
	for _, bug := range All {
		for _, edit := range bug.Edits {
			if err := apply(changed, root, bug.Name, edit); err != nil {
				return "", fmt.Errorf("bug %s: %w", bug.Name, err)
			}
		}
	}
	replace := map[string]string{}
	for file, content := range changed {
		to := filepath.Join(dir, strings.ReplaceAll(file, "/", "_"))
		content = strings.Replace(content, "\nimport ", "\nimport \"cloudnative.tw/drover/test/bugs\"\n\nimport ", 1) // beside the file's own
		if err := os.WriteFile(to, []byte(content), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, file)] = to
	}
	content, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	overlay := filepath.Join(dir, "overlay.json")
	return overlay, os.WriteFile(overlay, content, 0o600)
}

// apply makes an edit. In its new text, BUG is replaced by an expression for whether the bug is enabled.
func apply(changed map[string]string, root, name string, e Edit) error {
	content, ok := changed[e.File]
	if !ok {
		read, err := os.ReadFile(filepath.Join(root, e.File))
		if err != nil {
			return err
		}
		content = string(read)
	}
	if n := strings.Count(content, e.Old); n != 1 {
		return fmt.Errorf("%s has %d times %q", e.File, n, e.Old)
	}
	changed[e.File] = strings.Replace(content, e.Old, strings.ReplaceAll(e.New, "BUG", fmt.Sprintf("bugs.IsEnabled(%q)", name)), 1)
	return nil
}
