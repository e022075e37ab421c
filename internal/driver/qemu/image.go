// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
)

// fetchImages reports whether a server has to wait for an image that a disk is to be made
// of. The server retains its claim on what was fetched until the caller releases it:
// else an image that is always to be fetched would be fetched twice. What the server has kept is not fetched.
func (c *convergence) fetchImages(ctx context.Context) (waits bool, err error) {
	if c.inst.ID != "" {
		if err := c.host.Disks.KeepOnly(c.inst.Machine.Path, c.inst.Disks()...); err != nil {
			return false, c.host.StateDir.Explain(err)
		}
	}
	return c.host.Images.FetchMissing(ctx, c.spec, c.requiredImages())
}

// requiredImages returns the remote images that a server's next run needs: as the spec
// names them where a disk is still to be made of one, and else by their digest.
func (c *convergence) requiredImages() []disks.RequiredImage {
	all := []disks.RequiredImage{{Ref: c.rootImage(), Policy: image.PullPolicy(c.spec.Image.PullPolicy), Field: instance.RootField}}
	for i, v := range c.spec.Volumes {
		required := disks.RequiredImage{Ref: instance.WantedVolume(i, v).Image, Field: instance.VolumeField(i)}
		if v.Image != nil {
			required.Policy = image.PullPolicy(v.Image.PullPolicy)
		}
		if made, ok := c.inst.Volumes[v.Name]; ok {
			required.Ref = made.Image.FetchedRef()
		}
		all = append(all, required)
	}
	return slices.DeleteFunc(all, func(i disks.RequiredImage) bool { return !i.Source.IsFetched() })
}

// rootImage returns the image of a root disk that is still to be made. Otherwise it
// returns the image that the disk stands on, by its digest and from the source that the
// spec names for it.
func (c *convergence) rootImage() image.Ref {
	have := c.inst.Root.Image
	if c.inst.ID == "" {
		have.Ref = c.driver.defaultImage(c.spec)
	}
	requested := record.RequestedImage(c.spec, have.Ref)
	switch {
	case !c.inst.KeepsRoot(c.spec):
		return requested
	case c.host.Images.IsSame(have, requested):
		have.Ref = requested
	}
	return have.FetchedRef()
}

// defaultImage returns the image of a server whose spec names no image. The built-in image is not
// used if the spec names a kernel.
func (d *Driver) defaultImage(spec driver.ServerSpec) image.Ref {
	named := image.ParseRef(d.options.Image, "")
	if named.Source.Kind == source.BuiltIn && spec.Image.Kernel != nil {
		return image.Ref{}
	}
	return named
}

// checkNewImages refuses images whose content is not verified. Disks that were made of
// such an image stay in use, whatever the flag was then.
func (c *convergence) checkNewImages() error {
	for _, i := range c.requiredImages() {
		if c.host.Images.Sources.IsUnchecked(i.Ref) && !c.driver.options.UncheckedImages {
			return driver.Errorf(driver.ErrInvalid,
				"%s.checksum is empty: an image from a web server, or of a tag from a registry by plain HTTP, needs one, sha256: and 64 digits, unless Drover is started with --qemu-unchecked-images", i.Field)
		}
	}
	return nil
}

// checkCloudImages refuses new disks of cloud images that the catalogue rules out. Disks that were made stay
// in use, whatever the catalogue has now.
func (c *convergence) checkCloudImages() error {
	if c.inst.Root.Size == 0 {
		if err := c.host.Disks.CheckCloud(instance.WantedRoot(c.spec, c.rootImage())); err != nil {
			return err
		}
	}
	for i, v := range c.spec.Volumes {
		if _, made := c.inst.Volumes[v.Name]; made {
			continue
		}
		if err := c.host.Disks.CheckCloud(instance.WantedVolume(i, v)); err != nil {
			return err
		}
	}
	return nil
}

// checkImages checks that everything the next run is made of is available, and makes
// nothing.
func (c *convergence) checkImages() error {
	if err := c.host.Disks.CheckKernel(c.spec); err != nil {
		return err
	}
	if err := c.checkRoot(); err != nil {
		return err
	}
	for i, v := range c.spec.Volumes {
		have, made := c.inst.Volumes[v.Name]
		err := c.host.Disks.CheckImage(instance.VolumeField(i), have)
		if !made && v.Image != nil {
			_, err = c.host.Disks.FindImage(instance.WantedVolume(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkRoot checks the image of the root disk, and that each field of the spec applies to it.
func (c *convergence) checkRoot() error {
	requested := c.inst.ImageOf(c.spec)
	next := c.inst.Root.Image
	var err error
	switch {
	case !c.inst.NeedsRoot(c.spec):
		err = c.host.Disks.CheckImage(instance.RootField, c.inst.Root)
	case requested.Source.Kind != source.None || c.spec.Image.Kernel == nil:
		next, err = c.host.Disks.FindImage(instance.WantedRoot(c.spec, requested))
	}
	if err != nil {
		return err
	}
	return containerboot.CheckFields(c.spec, next.IsContainer())
}
