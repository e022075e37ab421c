// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/qemu/imagestore"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// Cache holds the images that were fetched into a folder, for programs that run no
// machines there. Controllers may run at the same time.
type Cache struct {
	dir   *statedir.Dir
	store *imagestore.Store
}

// CachedImage is a fetched image and its users.
type CachedImage struct {
	imagestore.Image
	// UsedBy are the machines whose disks stand on the image, as namespace/name, including
	// those of other clusters and released ones.
	UsedBy []string
}

// OpenCache opens a folder of the driver, which must exist. It creates nothing in the
// folder, since the caller may be another user than the one that runs machines.
func OpenCache(path string, c clock.WithTicker) (*Cache, error) {
	dir, err := statedir.OpenExisting("the qemu driver's folder", path)
	if err != nil {
		return nil, fmt.Errorf("%s is no folder of the qemu driver: %w", path, err)
	}
	return &Cache{dir: dir, store: &imagestore.Store{Dir: dir, Sub: cacheDir, Clock: c}}, nil
}

// Machines returns the directories of all machines, of every cluster.
func (c *Cache) Machines() ([]string, error) {
	homes, err := (&Driver{dir: c.dir}).allInstances()
	paths := make([]string, 0, len(homes))
	for _, h := range homes {
		paths = append(paths, h.Path)
	}
	return paths, err
}

// List returns the images in the folder, and their users.
func (c *Cache) List() ([]CachedImage, error) {
	images, err := c.store.List()
	if err != nil {
		return nil, err
	}
	users, err := c.users()
	if err != nil {
		return nil, err
	}
	all := make([]CachedImage, 0, len(images))
	for _, i := range images {
		all = append(all, CachedImage{i, users[i.Name]})
	}
	return all, nil
}

// Prune removes the images that no machine uses, and returns them.
func (c *Cache) Prune(ctx context.Context) ([]imagestore.Image, error) {
	return c.store.Prune(ctx, func() (map[string]bool, error) {
		users, err := c.users()
		used := make(map[string]bool, len(users))
		for name := range users {
			used[name] = true
		}
		return used, err
	})
}

// users returns the users of images, by the name of the image's file: the folder may have
// been moved. A server that cannot be read may use any image, so that is an error.
func (c *Cache) users() (map[string][]string, error) {
	homes, err := (&Driver{dir: c.dir}).allInstances()
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, h := range homes {
		r, err := h.load()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range r.stoodOn() {
			users[name] = append(users[name], r.Namespace+"/"+r.Name)
		}
	}
	return users, nil
}

// stoodOn returns the names of images that a server's disks stand on, each once.
func (r record) stoodOn() []string {
	names := []string{filepath.Base(r.Root.Image.Path)}
	if r.Old != nil {
		names = append(names, filepath.Base(r.Old.Image.Path))
	}
	for _, v := range r.Volumes {
		names = append(names, filepath.Base(v.Image.Path))
	}
	slices.Sort(names)
	return slices.Compact(names)
}
