// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/image/diskimage"
)

// Wait reports whether a server has to wait for one of the images, and begins to fetch it
// where needed. A failed fetch is reported once; the call after that begins a new one.
// Wait ends the server's interest in other images.
func (s *Store) Wait(ctx context.Context, spec driver.ServerSpec, images ...driver.Image) (waits bool, err error) {
	keys := make([]string, len(images))
	for n, i := range images {
		keys[n] = keyOf(i)
	}
	s.Fetches.ReleaseExcept(spec.UID, keys...)
	for n, i := range images {
		if waits, err := s.waitForOne(ctx, spec, i, keys[n]); waits || err != nil {
			return waits, err
		}
	}
	return false, nil
}

// keyOf returns the key that identifies a fetch.
func keyOf(i driver.Image) string { return i.Source + " " + i.Checksum }

func (s *Store) waitForOne(ctx context.Context, spec driver.ServerSpec, i driver.Image, key string) (waits bool, err error) {
	_, there := s.Path(i)
	if i.PullPolicy == driver.PullNever && !there {
		return false, driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry,
			"image %s is not among those that were fetched, and its pullPolicy is Never", Redact(i.Source)))
	}
	// An image with a checksum never has to be fetched again.
	if there && (i.PullPolicy != driver.PullAlways || i.Checksum != "") {
		return false, nil
	}
	outcome, err := s.Fetches.Outcome(spec.UID, key)
	switch {
	case err != nil:
		return false, err
	case outcome == download.Running:
		return true, nil
	case outcome == download.Fetched && there:
		return false, nil
	}
	s.Fetches.StartFetch(ctx, spec, key, "fetching "+Redact(i.Source), func(ctx context.Context, f *download.Fetch) error {
		if err := s.fetch(ctx, i, f); err != nil {
			return fmt.Errorf("image %s: %w", Redact(i.Source), err)
		}
		return nil
	})
	return true, nil
}

// fetch fetches an image and puts it into its place. A person may have removed the
// store's folder with all that was in it.
func (s *Store) fetch(ctx context.Context, i driver.Image, f *download.Fetch) error {
	if err := s.Dir.Reach(); err != nil {
		return err
	}
	if err := s.Dir.MakeFolders(); err != nil {
		return err
	}
	tmp, remove, err := s.Dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	path := filepath.Join(tmp, "image")
	digest, err := s.fetchTo(ctx, path, i, f)
	if err != nil {
		return err
	}
	name := imagePrefix + digest
	// Not renamed: disks may stand on a file that is already there.
	if err := os.Link(path, s.Dir.Path(s.Sub, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// A disk that stands on the image is recorded later, and must not outlive it.
	if err := s.Dir.Sync(s.Dir.Path(s.Sub)); err != nil {
		return err
	}
	return s.Dir.Replace(s.refPath(i.Source), []byte(name+"\n"+i.Source+"\n"))
}

// fetchTo fetches an image into a new, read-only file, and checks that it is an image.
func (s *Store) fetchTo(ctx context.Context, path string, i driver.Image, f *download.Fetch) (digest string, err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400) //nolint:gosec // in the engine's folder
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	a := s.newAttempt(i, out, f)
	digest, err = a.download(ctx)
	if content, is := errors.AsType[*contentError](err); is {
		s.useless.note(keyOf(i), a.version, s.Clock.Now(), content.error)
	}
	if err != nil {
		return "", err
	}
	return digest, out.Sync()
}

func checkImage(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = diskimage.Probe(f, info.Size())
	return err
}
