// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks

import (
	"context"
	"errors"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
)

// ImageStore fetches images in the background, each image once for all servers that wait
// for it. Its errors have the kinds of package driver.
type ImageStore struct {
	*image.Store

	Engine  *statedir.Dir
	Fetches *download.Tracker
}

// NewImageStore returns a store of the images in the sub-folder sub of the driver's folder.
func NewImageStore(dir *statedir.Dir, sub string, c clock.Clock, fetches *download.Tracker, sources *image.Sources) *ImageStore {
	stage := func() (path string, remove func(), err error) {
		if err := dir.Reach(); err != nil {
			return "", nil, err
		}
		if err := dir.MakeFolders(); err != nil {
			return "", nil, err
		}
		return dir.Temp()
	}
	return &ImageStore{&image.Store{Dir: dir.Path(), Sub: sub, Clock: c, Stage: stage, Sources: sources, Space: &diskspace.Disk{Dir: dir.Path()}}, dir, fetches}
}

// Hold prevents images from being pruned while the caller makes a disk from one of them.
func (s *ImageStore) Hold() (release func(), err error) {
	if release, err = s.Store.Hold(); err != nil {
		return nil, s.Engine.Explain(ContractError(err))
	}
	return release, nil
}

// RequiredImage is an image that a server needs, and the field of the spec that names the image.
type RequiredImage struct {
	image.Ref

	Policy image.PullPolicy
	Field  string
}

// FetchMissing starts to fetch the first image that is missing, and reports whether the server
// has to wait for that fetch. After a failed fetch it first returns the error, and the next call
// starts a new fetch. Fetches of other images for this server are abandoned.
func (s *ImageStore) FetchMissing(ctx context.Context, spec driver.ServerSpec, required []RequiredImage) (waits bool, err error) {
	keys := make([]string, len(required))
	for n, i := range required {
		keys[n] = i.Key()
	}
	s.Fetches.ReleaseExcept(spec.UID, keys...)
	for _, i := range required {
		if waits, err := s.fetchIfMissing(ctx, spec, i); waits || err != nil {
			return waits, err
		}
	}
	return false, nil
}

func (s *ImageStore) fetchIfMissing(ctx context.Context, spec driver.ServerSpec, i RequiredImage) (waits bool, err error) {
	needed, err := s.NeedsFetch(i.Ref, i.Policy)
	if err != nil || !needed {
		return false, ContractError(err)
	}
	outcome, err := s.Fetches.Outcome(spec.UID, i.Key())
	switch {
	case err != nil:
		return false, err
	case outcome == download.Running:
		return true, nil
	case outcome == download.Fetched:
		if _, exists := s.Path(i.Ref); exists {
			return false, nil
		}
	}
	s.Fetches.StartFetch(ctx, spec, i.Key(), "fetching "+i.Source.String(), func(ctx context.Context, f *download.Fetch) error {
		return ContractError(s.Fetch(ctx, i.Ref, f))
	})
	return true, nil
}

// CheckRef rejects an image that can never be fetched.
func CheckRef(field string, ref image.Ref) error { return ContractError(ref.Validate(field)) }

// RefOf parses the image of a spec.
func RefOf(i driver.Image) image.Ref { return image.ParseRef(i.Source, i.Checksum) }

// ContractError gives an error of package image a kind of package driver.
func ContractError(err error) error {
	switch {
	case errors.Is(err, image.ErrInvalid):
		return driver.Errorf(driver.ErrInvalid, "%w", err)
	case errors.Is(err, image.ErrUnsupported):
		return driver.Errorf(driver.ErrUnsupported, "%w", err)
	case errors.Is(err, image.ErrUnavailable):
		return unavailableError("%w", err)
	case errors.Is(err, image.ErrLocked):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

func unavailableError(format string, args ...any) error {
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, format, args...))
}
