// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// fakePackages replaces apt and dpkg by fakes with a kernel with compressed modules, as in Debian 13,
// or without any kernel.
func fakePackages(t *testing.T, depends string) (env []string) {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{
		"sudo":      `shift; exec "$@"`,
		"apt-cache": `echo "` + depends + `" | grep . || exit 100`,
		"apt-get":   `[ "$1" != download ] || touch "$3.deb"`,
		"dpkg": `mkdir -p "$3/boot" "$3/usr/lib/modules/1/kernel"
			echo kernel >"$3/boot/vmlinuz-1"
			echo module | xz >"$3/usr/lib/modules/1/kernel/virtio_blk.ko.xz"
			echo module >"$3/usr/lib/modules/1/kernel/button.ko"
			echo other >"$3/usr/lib/modules/1/kernel/other.ko"`,
	} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\nset -e\n"+body+"\n"), 0o700))
	}
	return append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
}

// runLinuxGuest builds the guest with a separate cache, and returns the folder of its kernel.
func runLinuxGuest(t *testing.T, env []string) (dir, out string, err error) {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	guest, cache, temp := filepath.Join(t.TempDir(), "guest"), t.TempDir(), t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "linux-guest.sh"), guest)
	cmd.Env = env
	cmd.Env = append(cmd.Env, "TMPDIR="+temp, "DROVER_CACHE="+cache)
	printed, err := cmd.CombinedOutput()
	left, readErr := os.ReadDir(temp)
	assert.True(t, readErr == nil && len(left) == 0, "the build has left %v, %v", left, readErr)
	if err == nil {
		_, err = os.Stat(filepath.Join(guest, "initrd"))
	}
	return filepath.Join(cache, "v1", "kernel"), string(printed), err
}

// TestLinuxGuestUnpacksModules checks that the guest's init can load the modules.
func TestLinuxGuestUnpacksModules(t *testing.T) {
	t.Parallel()
	dir, out, err := runLinuxGuest(t, fakePackages(t, "  Depends: linux-image-1-cloud-amd64"))
	assert.Require(t, err == nil, "%v: %s", err, out)
	for name, want := range map[string]string{"vmlinuz": "kernel\n", "modules/virtio_blk.ko": "module\n", "modules/button.ko": "module\n"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(content) != want {
			t.Errorf("%s holds %q, %v", name, content, err)
		}
	}
	modules, err := os.ReadDir(filepath.Join(dir, "modules"))
	assert.True(t, err == nil && len(modules) == 2, "the modules are %v, %v", modules, err)
}

// TestLinuxGuestWithoutAKernel checks that the error names what is missing.
func TestLinuxGuestWithoutAKernel(t *testing.T) {
	t.Parallel()
	_, out, err := runLinuxGuest(t, fakePackages(t, ""))
	assert.True(t, err != nil && strings.Contains(out, "apt knows no package linux-image-cloud-amd64"), "%v: the build printed %s", err, out)
}
