// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/image"
)

// fetchImages reports whether a server has to wait for an image that a disk is to be made
// of. The server retains its claim on what was fetched until the caller releases it:
// else an image that is always to be fetched would be fetched twice.
func (d *Driver) fetchImages(ctx context.Context, s *instance.Instance, spec driver.ServerSpec) (waits bool, err error) {
	var refs []image.Ref
	for _, i := range d.requiredImages(s, spec) {
		refs = append(refs, i.Ref)
	}
	return d.Images.FetchMissing(ctx, spec, refs...)
}

// requiredImage is an image that has to be fetched if it is missing, and the field that
// names it.
type requiredImage struct {
	image.Ref

	field string
}

// requiredImages returns the remote images that a server's next run needs: as the spec
// names them where a disk is still to be made of one, and else by their digest.
func (d *Driver) requiredImages(s *instance.Instance, spec driver.ServerSpec) []requiredImage {
	all := []requiredImage{{d.rootImage(s, spec), instance.RootField}}
	for i, v := range spec.Volumes {
		var ref image.Ref
		if v.Image != nil {
			ref = disks.RefOf(*v.Image)
		}
		if made, is := s.Volumes[v.Name]; is {
			ref = made.Image.FetchedRef(ref.PullPolicy)
		}
		all = append(all, requiredImage{ref, instance.VolumeField(i)})
	}
	return slices.DeleteFunc(all, func(i requiredImage) bool { return !image.IsRemote(i.Source) })
}

// rootImage returns the image of a root disk that is still to be made. Otherwise it
// returns the image that the disk stands on, by its digest and from the source that the
// spec names for it.
func (d *Driver) rootImage(s *instance.Instance, spec driver.ServerSpec) image.Ref {
	have, policy := s.Root.Image, image.PullPolicy(spec.Image.PullPolicy)
	if s.ID == "" {
		have.Source = d.Image
	}
	requested := record.RequestedImage(spec, have.ImageSettings)
	switch {
	case s.Root.Size == 0:
		return image.Ref{Source: requested.Source, Checksum: requested.Checksum, PullPolicy: policy}
	case d.Disks.IsSame(have, requested):
		have.ImageSettings = requested
	}
	return have.FetchedRef(policy)
}

// checkNewImages refuses images whose content is not verified. Disks that were made of
// such an image stay in use, whatever the flag was then.
func (d *Driver) checkNewImages(s *instance.Instance, spec driver.ServerSpec) error {
	for _, i := range d.requiredImages(s, spec) {
		if d.Images.Sources.IsUnchecked(i.Ref) && !d.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server, or of a tag from a registry by plain HTTP, needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.field)
		}
	}
	return nil
}

// checkImages checks that everything the next run is made of is available, and makes
// nothing.
func (d *Driver) checkImages(s *instance.Instance, spec driver.ServerSpec) error {
	if err := d.Disks.CheckKernel(spec); err != nil {
		return err
	}
	if err := d.checkRoot(s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		err := d.Disks.CheckImage(instance.VolumeField(i), have)
		if !made && v.Image != nil {
			_, err = d.Disks.FindImage(instance.VolumeOrder(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(s *instance.Instance, spec driver.ServerSpec) error {
	requested := s.ImageOf(spec)
	switch {
	case !s.NeedsRoot(spec):
		return d.Disks.CheckImage(instance.RootField, s.Root)
	case requested.Source == "" && spec.Image.Kernel != nil:
		return nil
	}
	_, err := d.Disks.FindImage(instance.RootOrder(spec, requested))
	return err
}
