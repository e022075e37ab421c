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

// TestKernelFitsIntoMemory checks that a file which is copied for a run is no larger than the guest's memory.
func TestKernelFitsIntoMemory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	small, large := filepath.Join(dir, "small"), filepath.Join(dir, "large")
	assert.NoError(t, errors.Join(os.WriteFile(small, []byte("kernel"), 0o600), os.WriteFile(large, nil, 0o600), os.Truncate(large, 16<<20+1)))
	for name, c := range map[string]struct {
		kernel driver.Kernel
		kind   error
		says   string
	}{
		"both fit":       {driver.Kernel{Source: small, Initrd: small}, nil, ""},
		"a large kernel": {driver.Kernel{Source: large}, driver.ErrInvalid, "spec.image.kernel.source"},
		"a large initrd": {driver.Kernel{Source: small, Initrd: large}, driver.ErrInvalid, "it must fit into spec.resource.memory, 16Mi"},
	} {
		spec := driver.ServerSpec{MemoryBytes: 16 << 20, Image: driver.Image{Kernel: &c.kernel}}
		files := &launch.Files{}
		_, err := disks.NewStore(dir, nil, []string{dir}).OpenKernel(spec, files)
		files.Close()
		assert.ErrorIs(t, name, err, c.kind, c.says)
	}
}
