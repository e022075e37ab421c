// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/imagestore"
)

// fetching tells whether a server has to wait for an image that a disk is to be
// made of. What was fetched stays the server's until the caller has no more use
// for it: else one that is always to be fetched would be so twice.
func (d *Driver) fetching(ctx context.Context, s server, spec driver.ServerSpec) (waits bool, err error) {
	var images []driver.Image
	for _, i := range d.imagesOf(s, spec) {
		images = append(images, i.Image)
	}
	return d.images.Wait(ctx, spec, images...)
}

// namedImage is one that has to be fetched if it is not there, and the field that
// names it.
type namedImage struct {
	field string
	driver.Image
}

// imagesOf are those, of what is fetched, that a server's next run needs: as the
// spec names them where a disk is still to be made of one, and else by their digest.
func (d *Driver) imagesOf(s server, spec driver.ServerSpec) []namedImage {
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

// rootImage is the image of a root disk that is still to be made, or by its digest
// the one that the disk stands on, from wherever the spec names the same.
func (d *Driver) rootImage(s server, spec driver.ServerSpec) driver.Image {
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

// checkNewImages refuses what could be anything. Disks that were made of such an
// image stay in use, whatever the flag was then.
func (d *Driver) checkNewImages(s server, spec driver.ServerSpec) error {
	for _, i := range d.imagesOf(s, spec) {
		if d.images.Sources.IsUnchecked(i.Image) && !d.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server, or of a tag from a registry by plain HTTP, needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.field)
		}
	}
	return nil
}

// checkImages makes sure that the next run finds what it is to be made of, and
// makes nothing.
func (d *Driver) checkImages(s *server, spec driver.ServerSpec) error {
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

func (d *Driver) checkRoot(s *server, spec driver.ServerSpec) error {
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
