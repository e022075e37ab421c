// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestProxyCommand checks that ssh itself and its shell pass every word on as it was.
func TestProxyCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "words")
	words := []string{"plain", "a b", "it's", `"quoted"`, "50%d", "$HOME", "`id`", ""}
	command := append([]string{"sh", "-c", `printf '%s\n' "$@" > "$0"`, file}, words...)
	err := exec.CommandContext(t.Context(), "ssh", "-F", "none", "-o", "ProxyCommand="+quoteCommand(command), "host").Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		t.Fatalf("ssh to a command that ends gives %v, want a failure", err)
	}
	shown, err := os.ReadFile(file)
	if want := strings.Join(words, "\n") + "\n"; err != nil || string(shown) != want {
		t.Errorf("the command got %q, %v, want %q", shown, err, want)
	}
}

func TestParseCopyEnd(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]copyEnd{
		"file":            {path: "file"},
		"./a:b":           {path: "./a:b"},
		"web:/tmp":        {name: "web", path: "/tmp"},
		"debian@web:":     {user: "debian", name: "web"},
		"a@b@web:dir/x:y": {user: "a@b", name: "web", path: "dir/x:y"},
		"/etc/x:y":        {path: "/etc/x:y"},
	} {
		if got, err := parseCopyEnd(text); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{":/tmp", "@web:/tmp", "-oProxyCommand=x@web:/tmp", "debian@:/tmp"} {
		if got, err := parseCopyEnd(text); err == nil {
			t.Errorf("%q is accepted as %+v", text, got)
		}
	}
}
