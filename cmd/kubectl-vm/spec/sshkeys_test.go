// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// newKey returns a public key with a comment. Its content means nothing.
func newKey(comment string) string {
	blob := "\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20" + strings.Repeat(comment[:1], 32)
	return "ssh-ed25519 " + base64.StdEncoding.EncodeToString([]byte(blob)) + " " + comment
}

// setHome gives the test a home folder with files in .ssh, and no agent.
func setHome(t *testing.T, files map[string]string) string {
	t.Helper()
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("SSH_AUTH_SOCK", "")
	assert.NoError(t, os.Mkdir(filepath.Join(home, ".ssh"), 0o700))
	for name, content := range files {
		assert.NoError(t, os.WriteFile(filepath.Join(home, ".ssh", name), []byte(content), 0o600))
	}
	return home
}

func TestOwnKeys(t *testing.T) {
	setHome(t, map[string]string{
		"id_ed25519.pub": newKey("a@host") + "\n", "id_rsa.pub": "# comment\n\n" + newKey("b@host"),
		"id_ed25519": "-----BEGIN OPENSSH PRIVATE KEY-----", "id_ed25519-cert.pub": "ssh-ed25519-cert-v01@openssh.com AAAA", "other.pub": newKey("c@host"),
	})
	got, err := readKeys(t.Context(), []string{keyAuto, keyAuto})
	assert.True(t, err == nil && len(got) == 2 && got[0] == newKey("a@host") && got[1] == newKey("b@host"), "got %q and %v, want the keys of a and b once", got, err)
}

func TestNoOwnKeys(t *testing.T) {
	home := setHome(t, nil)
	_, err := readKeys(t.Context(), []string{keyAuto})
	assert.ErrorSays(t, "no own keys", err, "ssh-keygen")
	files, _ := os.ReadDir(filepath.Join(home, ".ssh"))
	assert.True(t, len(files) == 0, "%v was made", files)
}

func TestReadKeys(t *testing.T) {
	home := setHome(t, map[string]string{
		"key.pub": newKey("a@host"), "private": "-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n",
		"empty.pub": "\n", "broken.pub": "ssh-ed25519 !!!\n", "options.pub": `command="a b" ` + newKey("d@host"),
	})
	ssh := filepath.Join(home, ".ssh")
	for _, value := range []string{filepath.Join(ssh, "key.pub"), newKey("b@host"), filepath.Join(ssh, "options.pub")} {
		got, err := readKeys(t.Context(), []string{value})
		assert.True(t, err == nil && len(got) == 1, "%s: %q and %v, want one key", value, got, err)
	}
	for value, want := range map[string]string{
		filepath.Join(ssh, "private"): "private key", filepath.Join(ssh, "empty.pub"): "there is no public key in it", filepath.Join(ssh, "broken.pub"): "not a public key",
		filepath.Join(ssh, "absent"): "no such file", "ssh-ed25519 x": "not a public key", ssh: "is a directory",
	} {
		if _, err := readKeys(t.Context(), []string{value}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--ssh-key") {
			t.Errorf("%s: %v, want an error of --ssh-key with %q", value, err, want)
		}
	}
}
