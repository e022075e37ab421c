// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"

	"cloudnative.tw/drover/test/framework/filelock"
)

// ImageGuest has the files that boot a container image as a machine, from bin/guest, which make guest builds.
type ImageGuest struct {
	Kernel, Initramfs string
}

// BuildImageGuest builds it, once per process.
var BuildImageGuest = sync.OnceValues(func() (ImageGuest, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return ImageGuest{}, err
	}
	unlock, err := filelock.Lock(filepath.Join(root, "bin", ".guest.lock"))
	if err != nil {
		return ImageGuest{}, err
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
	defer cancel()
	dir := filepath.Join(root, "bin", "guest")
	if out, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "guest.sh"), dir).CombinedOutput(); err != nil {
		return ImageGuest{}, fmt.Errorf("building the guest of container images: %w\n%s", err, out)
	}
	return ImageGuest{Kernel: filepath.Join(dir, "vmlinux"), Initramfs: filepath.Join(dir, "initramfs")}, nil
})
