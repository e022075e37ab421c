// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// lockEvery is the interval between two attempts to lock the store exclusively.
const lockEvery = 10 * time.Millisecond

// StoredImage is an image in the store.
type StoredImage struct {
	// Digest is "sha256:" and 64 digits.
	Digest string
	// Sources are the sources that stood for the image when they were last fetched. There
	// are none if each stands for another image now.
	Sources   []string
	Name      string // of its file
	Size      int64
	FetchedAt time.Time
}

// List returns the images in the store.
func (s *Store) List() ([]StoredImage, error) {
	entries, err := os.ReadDir(s.Dir.Path(s.Sub))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	sources := s.sources(entries)
	var images []StoredImage
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), imagePrefix) {
			continue
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		images = append(images, StoredImage{
			Digest: DigestOf(entry.Name()), Sources: sources[entry.Name()],
			Name: entry.Name(), Size: info.Size(), FetchedAt: info.ModTime(),
		})
	}
	return images, nil
}

// sources returns the sources of the images, by the images' names.
func (s *Store) sources(entries []fs.DirEntry) map[string][]string {
	found := map[string][]string{}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), refPrefix) {
			continue
		}
		content, err := os.ReadFile(s.Dir.Path(s.Sub, entry.Name()))
		if name, source := parseRef(content); err == nil && source != "" {
			found[name] = append(found[name], source)
		}
	}
	for _, all := range found {
		slices.Sort(all)
	}
	return found
}

// MakeLock creates the lock file of the images. The process that runs machines creates it
// first: it could not open a file that another user created.
func (s *Store) MakeLock() error {
	lock, err := statedir.TryLock(s.lockPath(), syscall.LOCK_SH)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: user %d, who runs Drover, must be able to write to it; it must be given to that user (chown), or removed while no Drover runs",
			err, os.Geteuid())
	case err != nil:
		return err
	}
	lock.Release()
	return nil
}

// Hold keeps images from being pruned while a disk is made of one, until it is recorded
// that the disk stands on it.
func (s *Store) Hold() (release func(), err error) {
	lock, err := statedir.TryLock(s.lockPath(), syscall.LOCK_SH)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, driver.Errorf(driver.ErrRetry, "images are being pruned: %w", err)
	}
	if err != nil {
		return nil, s.Dir.Explain(err)
	}
	return lock.Release, nil
}

// Prune removes the unused images, and returns them. It calls used, which returns the
// names of those in use, while no disk is being made of any. Without a lock file there
// never was an image.
func (s *Store) Prune(ctx context.Context, used func() (map[string]bool, error)) ([]StoredImage, error) {
	lock, err := s.lockAlone(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.Release()
	names, err := used()
	if err != nil {
		return nil, err
	}
	images, err := s.List()
	if err != nil {
		return nil, err
	}
	var removed []StoredImage
	for _, i := range images {
		if names[i.Name] {
			continue
		}
		if err := s.remove(i); err != nil {
			return removed, err
		}
		removed = append(removed, i)
	}
	return removed, nil
}

// remove removes the image before its sources: a source whose image is missing is fetched
// again.
func (s *Store) remove(i StoredImage) error {
	if err := os.Remove(s.Dir.Path(s.Sub, i.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, source := range i.Sources {
		errs = append(errs, os.Remove(s.refPath(source)))
	}
	return errors.Join(errs...)
}

func (s *Store) lockAlone(ctx context.Context) (*statedir.Lock, error) {
	for {
		lock, err := statedir.TryLockExisting(s.lockPath(), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, driver.Errorf(driver.ErrRetry, "disks are being made of images all the time: %w", ctx.Err())
		case <-s.Clock.After(lockEvery):
		}
	}
}

func (s *Store) lockPath() string { return s.Dir.Path(s.Sub, lockFile) }
