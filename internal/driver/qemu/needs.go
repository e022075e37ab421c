// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/imagestore"
)

// fetching reports whether a server has to wait for an image that a disk is to be made
// of. What was fetched is kept for the server until the caller does not need it any more:
// else an image that is always to be fetched would be fetched twice.
func (d *Driver) fetching(ctx context.Context, s *instance, spec driver.ServerSpec) (waits bool, err error) {
	var images []driver.Image
	for _, i := range d.imagesOf(s, spec) {
		images = append(images, i.Image)
	}
	return d.images.Wait(ctx, spec, images...)
}

// namedImage is an image that has to be fetched if it is missing, and the field that
// names it.
type namedImage struct {
	field string
	driver.Image
}

// imagesOf returns the remote images that a server's next run needs: as the spec names
// them where a disk is still to be made of one, and else by their digest.
func (d *Driver) imagesOf(s *instance, spec driver.ServerSpec) []namedImage {
	all := []namedImage{{rootField, d.rootImage(s, spec)}}
	for i, v := range spec.Volumes {
		var asked driver.Image
		if v.Image != nil {
			asked = *v.Image
		}
		if made, is := s.Volumes[v.Name]; is {
			asked = made.Image.fetched(asked.PullPolicy)
		}
		all = append(all, namedImage{volumeField(i), asked})
	}
	return slices.DeleteFunc(all, func(i namedImage) bool { return !imagestore.IsRemote(i.Source) })
}

// rootImage returns the image of a root disk that is still to be made. Otherwise it
// returns the image that the disk stands on, by its digest and from the source that the
// spec names for it.
func (d *Driver) rootImage(s *instance, spec driver.ServerSpec) driver.Image {
	have := s.Root.Image
	if s.ID == "" {
		have.Source = d.Image
	}
	asked := imageOf(spec, have.imageSettings)
	switch {
	case s.Root.Size == 0:
		image := asked.ref()
		image.PullPolicy = spec.Image.PullPolicy
		return image
	case d.isSame(have, asked):
		have.imageSettings = asked
	}
	return have.fetched(spec.Image.PullPolicy)
}

// checkNewImages refuses images whose content is not verified. Disks that were made of
// such an image stay in use, whatever the flag was then.
func (d *Driver) checkNewImages(s *instance, spec driver.ServerSpec) error {
	for _, i := range d.imagesOf(s, spec) {
		if d.images.Sources.IsUnchecked(i.Image) && !d.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server, or of a tag from a registry by plain HTTP, needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.field)
		}
	}
	return nil
}

// checkImages checks that everything the next run is made of is available, and makes
// nothing.
func (d *Driver) checkImages(s *instance, spec driver.ServerSpec) error {
	if err := d.checkKernel(spec); err != nil {
		return err
	}
	if err := d.checkRoot(s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		err := d.checkImage(volumeField(i), have)
		if !made && v.Image != nil {
			_, err = d.imageFor(volumeOrder(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(s *instance, spec driver.ServerSpec) error {
	asked := s.imageOf(spec)
	switch {
	case !s.needsRoot(spec):
		return d.checkImage(rootField, s.Root)
	case asked.Source == "" && spec.Image.Kernel != nil:
		return nil
	}
	_, err := d.imageFor(rootOrder(spec, asked))
	return err
}
