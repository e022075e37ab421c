// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// TestKernelFitsIntoMemory checks that the files which are copied for a run are together no larger than the guest's
// memory.
func TestKernelFitsIntoMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, large, half, most := filepath.Join(dir, "small"), filepath.Join(dir, "large"), filepath.Join(dir, "half"), filepath.Join(dir, "most")
	assert.NoError(t, errors.Join(os.WriteFile(small, []byte("kernel"), 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, 16<<20+1),
		os.WriteFile(half, nil, 0o600), os.Truncate(half, 8<<20), os.WriteFile(most, nil, 0o600), os.Truncate(most, 8<<20+1)))
	for name, c := range map[string]struct {
		kernel driver.Kernel
		kind   error
		says   string
	}{
		"both fit":       {driver.Kernel{Source: half, Initrd: half}, nil, ""},
		"large together": {driver.Kernel{Source: most, Initrd: half}, driver.ErrInvalid, "spec.image.kernel.initrd"},
		"a large kernel": {driver.Kernel{Source: large}, driver.ErrInvalid, "spec.image.kernel.source"},
		"a large initrd": {driver.Kernel{Source: small, Initrd: large}, driver.ErrInvalid, "must fit into spec.resource.memory, of which 16777210 bytes are left for this file"},
	} {
		spec := driver.ServerSpec{MemoryBytes: 16 << 20, Image: driver.Image{Kernel: &c.kernel}}
		files := &launch.Files{}
		_, err := disks.NewStore(dir, nil, []string{dir}).OpenKernel(spec, files)
		files.Close()
		assert.ErrorIs(t, name, err, c.kind, c.says)
	}
}

// TestSourceOfKernel checks that the file of a kernel is named by a path, which no other kind of source has.
func TestSourceOfKernel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "kernel")
	assert.NoError(t, os.WriteFile(path, []byte("kernel"), 0o600))
	for source, want := range map[string]string{
		path: "", "file://" + path: "",
		"oci://" + path: "it must be the absolute path of a file, with or without the prefix file://", "kernel": "it must be the absolute path",
		dir + "/../kernel": "must not contain // or the elements . and ..", "/etc/hosts": "images may be in " + dir,
		"https://user:hunter2@host" + path: `spec.image.kernel.source is "https://host` + path + `": it must be`,
	} {
		err := disks.NewStore(dir, nil, []string{dir}).CheckKernel(driver.ServerSpec{MemoryBytes: 16 << 20, Image: driver.Image{Kernel: &driver.Kernel{Source: source}}})
		assert.ErrorSays(t, source, err, want)
	}
}
