// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os/exec"
	"strings"
	"testing"
)

// TestProxyCommand checks that ssh itself and its shell pass every word on as it was.
func TestProxyCommand(t *testing.T) {
	t.Parallel()
	words := []string{"printf", `%s\n`, "plain", "a b", "it's", `"quoted"`, "50%d", "$HOME", "`id`", ""}
	out, err := exec.CommandContext(t.Context(), "ssh", "-F", "none", "-G", "-o", "ProxyCommand="+quoteCommand(words), "host").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, command, _ := strings.Cut("\n"+string(out), "\nproxycommand ")
	command, _, _ = strings.Cut(command, "\n")
	shown, err := exec.CommandContext(t.Context(), "sh", "-c", strings.ReplaceAll(command, "%%", "%")).Output()
	if want := strings.Join(words[2:], "\n") + "\n"; err != nil || string(shown) != want {
		t.Errorf("it runs %q, which prints %q, %v, want %q", command, shown, err, want)
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
