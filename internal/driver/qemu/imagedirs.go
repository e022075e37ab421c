// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"path/filepath"

	"cloudnative.tw/drover/internal/driver/statedir"
)

// checkImageDirs refuses folders through which a machine could get Drover's own files:
// the disk of another machine, with its secrets, or a private key.
func (o Options) checkImageDirs(dir *statedir.Dir) error {
	always := dir.Path(imagesDir)
	for _, images := range o.ImageDirs {
		if !filepath.IsAbs(images) {
			return fmt.Errorf("--qemu-image-dirs has %q: each must be the absolute path of a folder", images)
		}
		if holds(always, images) {
			continue
		}
		for _, own := range append([]string{dir.Path()}, o.Private...) {
			if holds(images, own) || holds(own, images) {
				return fmt.Errorf("--qemu-image-dirs has %q: it must not hold, or be in, %s, where Drover keeps disks and secrets; %s is allowed always",
					images, own, always)
			}
		}
	}
	return nil
}

// holds reports whether a path is a folder or below it, after symbolic links are
// resolved.
func holds(dir, path string) bool {
	name, err := filepath.Rel(resolve(filepath.Clean(dir)), resolve(filepath.Clean(path)))
	return err == nil && filepath.IsLocal(name)
}

// resolve follows symbolic links in the part of the path that exists.
func resolve(path string) string {
	whole, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(resolve(parent), filepath.Base(path))
	}
	if err != nil {
		return path
	}
	return whole
}
