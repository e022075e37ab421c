// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestProxyCommand checks that ssh itself and its shell pass every word on as it was.
func TestProxyCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "words")
	words := []string{"plain", "a b", "it's", `"quoted"`, "50%d", "$HOME", "`id`", ""}
	command := append([]string{"sh", "-c", `printf '%s\n' "$@" > "$0"`, file}, words...)
	err := exec.CommandContext(t.Context(), "ssh", "-F", "none", "-o", "ProxyCommand="+quoteCommand(command), "host").Run()
	exit := (*exec.ExitError)(nil)
	assert.Require(t, errors.As(err, &exit), "ssh to a command that ends gives %v, want a failure", err)
	shown, err := os.ReadFile(file)
	want := strings.Join(words, "\n") + "\n"
	assert.True(t, err == nil && string(shown) == want, "the command got %q, %v, want %q", shown, err, want)
}
