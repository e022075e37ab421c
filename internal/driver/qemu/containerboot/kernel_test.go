// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containerboot

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/assert"
)

// TestGuestVersion checks that a kernel without its modules, or with the guest's program of another Drover, is refused
// before a run, with a remedy: such a program may not be able to say anything.
func TestGuestVersion(t *testing.T) {
	t.Parallel()
	const digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for about, message := range map[string]string{
		`{"vmlinuxSHA256": "` + digest + `"}`:                                                   "guestVersion in kernel.json is 0",
		fmt.Sprintf(`{"guestVersion": %d, "vmlinuxSHA256": "%s"}`, config.Version+1, digest):    "run make guest",
		fmt.Sprintf(`{"guestVersion": %d, "vmlinuxSHA256": "other than that"}`, config.Version): "modules-other than that.erofs",
		fmt.Sprintf(`{"guestVersion": %d, "vmlinuxSHA256": "%s"}`, config.Version, digest):      "",
	} {
		dir := t.TempDir()
		for name, content := range map[string]string{guestAboutFile: about, guestKernelFile: "kernel", guestInitrdFile: "initramfs", "modules-0123456789abcdef.erofs": "modules"} {
			assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		files := &launch.Files{}
		_, err := OpenKernel(dir, launch.AccelTCG, files)
		files.Close()
		if message == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, about, err, driver.ErrRetry, message)
	}
}
