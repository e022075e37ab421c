// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// TestNames checks the files by which programs find hosts.
func TestNames(t *testing.T) {
	t.Parallel()
	n := Names{Address: netip.MustParseAddr("10.0.2.15"), Resolvers: []netip.Addr{netip.MustParseAddr("10.0.2.3"), netip.MustParseAddr("fd00::3")}, Search: []string{"a.example", "b.example"}}
	const fixed = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::\tip6-localnet\nff00::\tip6-mcastprefix\n" +
		"ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n"
	got, want := n.hosts("web"), fixed+"10.0.2.15\tweb\n"
	assert.True(t, got == want, "hosts is %q, want %q", got, want)
	got, want = n.resolvers(), "nameserver 10.0.2.3\nnameserver fd00::3\nsearch a.example b.example\n"
	assert.True(t, got == want, "resolv.conf is %q, want %q", got, want)
	got, want = (Names{}).hosts("web"), fixed+"127.0.1.1\tweb\n"
	assert.True(t, got == want, "without an address hosts is %q, want %q", got, want)
	assert.Equal(t, "without resolvers resolv.conf", (Names{Search: []string{"a.example"}}).resolvers(), "")
}

// TestWriteFile checks that a file is replaced whatever it was, and that no link is followed.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	assert.NoError(t, os.WriteFile(outside, []byte("outside"), 0o600))
	etc := filepath.Join(root, "etc")
	assert.NoError(t, os.Mkdir(etc, 0o750))
	assert.NoError(t, os.Symlink(outside, filepath.Join(etc, "link")))
	assert.NoError(t, os.WriteFile(filepath.Join(etc, "file"), []byte("a longer text than the new one"), 0o600))
	assert.NoError(t, unix.Mkfifo(filepath.Join(etc, "pipe"), 0o600))
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	assert.NoError(t, err)
	dir, err := openEtc(fd)
	assert.NoError(t, err)
	for _, name := range []string{"link", "file", "pipe", "new"} {
		for range 2 {
			assert.NoError(t, writeFile(dir, name, "text"))
		}
		info, err := os.Lstat(filepath.Join(etc, name))
		assert.NoError(t, err)
		content, err := os.ReadFile(filepath.Join(etc, name))
		if assert.NoError(t, err); string(content) != "text" || !info.Mode().IsRegular() {
			t.Errorf("%s is %s, %q", name, info.Mode(), content)
		}
	}
	content, err := os.ReadFile(outside)
	if assert.NoError(t, err); string(content) != "outside" {
		t.Errorf("the file that a link leads to has %q", content)
	}
	assert.NoError(t, os.RemoveAll(etc))
	assert.NoError(t, os.Symlink(filepath.Dir(outside), etc))
	assert.ErrorIs(t, "a link in place of /etc", assert.ErrorOf(openEtc(fd)), unix.ELOOP)
}
