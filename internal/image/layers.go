// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/image/layer"
)

// diskFolder is the folder of the disk in an image for machines, as in container disks.
const diskFolder = "disk"

// diskCopier copies the disk of an image: the one file in the disk's folder, in any
// layer.
type diskCopier struct {
	out    io.Writer
	found  bool
	limits *layer.Limits
}

// copyDisk copies the disk of an image whose layers have at most limit bytes. It reads
// all of them: whether they match the image's digests shows only at their end.
func copyDisk(image v1.Image, out io.Writer, limit int64) error {
	layers, err := layersOf(image)
	if err != nil {
		return err
	}
	c := &diskCopier{out: out, limits: layer.NewLimits(limit)}
	for _, l := range layers {
		if err := c.copyLayer(l); err != nil {
			return err
		}
	}
	if !c.found {
		return unusableContent("there is no disk in /%s of the image", diskFolder)
	}
	return nil
}

// layersOf returns the layers of an image.
func layersOf(image v1.Image) ([]v1.Layer, error) {
	layers, err := image.Layers()
	if err == nil && len(layers) > layer.MaxCount {
		err = unusableContent("the image has %d layers: it may have %d", len(layers), layer.MaxCount)
	}
	return layers, err
}

func (c *diskCopier) copyLayer(l v1.Layer) error {
	body, err := l.Compressed()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return c.limits.ReadEntries(body, func(entry *tar.Header, content io.Reader) error {
		isDisk, err := c.checkEntry(entry)
		if err == nil && isDisk {
			_, err = io.Copy(c.out, content)
		}
		return err
	})
}

// checkEntry reports whether an entry is the disk. It refuses what would make the disk
// ambiguous.
func (c *diskCopier) checkEntry(entry *tar.Header) (isDisk bool, err error) {
	dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
	inside := dir == diskFolder+"/"
	hides := strings.HasPrefix(base, layer.Whiteout) && (inside || dir == "" && (base == layer.Whiteout+diskFolder || base == layer.Opaque))
	switch {
	case hides:
		return false, unusableContent("a layer of the image removes or hides files of /%s, which is not taken: it must be built anew, with one disk", diskFolder)
	case !inside, strings.HasPrefix(base, "."):
		return false, nil
	case layer.IsSparse(entry):
		return false, unusableContent("the disk is a sparse file in its archive, which is not taken: build the image without --sparse")
	case entry.Typeflag != tar.TypeReg:
		return false, nil
	case c.found:
		return false, unusableContent("there is more than one file in /%s of the image: it must hold one disk", diskFolder)
	}
	c.found = true
	return true, nil
}
