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
	count  func(bytes int)
}

// copyDisk copies the disk of an image whose layers have at most limit bytes. It reads
// all of them: whether they match the image's digests shows only at their end. count is called
// with how much was read.
func copyDisk(image v1.Image, out io.Writer, limit int64, count func(bytes int)) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	c := &diskCopier{out: out, limits: layer.NewLimits(limit), count: count}
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

// measureLayers returns the sizes of the layers of an image, in all limit bytes at most. Before any of its blobs is
// read, it checks the sizes that the manifest states: the library reads a blob as far as that, or without
// an end if the size is -1, and takes the first size of a digest that is there twice.
func measureLayers(image v1.Image, limit int64) (sizes []int64, err error) {
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	if n := len(manifest.Layers); n > layer.MaxCount {
		return nil, unusableContent("the image has %d layers: it may have %d", n, layer.MaxCount)
	}
	if size := manifest.Config.Size; size < 0 || size > maxConfigFile {
		return nil, unusableContent("its configuration has %d bytes: it may have 0 to %d", size, maxConfigFile)
	}
	stated := map[v1.Hash]int64{manifest.Config.Digest: manifest.Config.Size}
	for _, l := range manifest.Layers {
		first, isTwice := stated[l.Digest]
		switch {
		case l.Size <= 0: // an empty archive has some bytes, and one of 0 would be asked for once all have come
			return nil, unusableContent("a layer of the image has %d bytes: it must have 1 or more", l.Size)
		case isTwice && l.Size != first:
			return nil, unusableContent("the image has a blob of both %d and %d bytes: it must have one size", first, l.Size)
		case l.Size > limit-sumSizes(sizes):
			return nil, tooLargeError("the layers of the image have more than", limit)
		}
		stated[l.Digest], sizes = l.Size, append(sizes, l.Size)
	}
	return sizes, nil
}

func sumSizes(sizes []int64) (total int64) {
	for _, size := range sizes {
		total += size
	}
	return total
}

func (c *diskCopier) copyLayer(l v1.Layer) error {
	body, err := l.Compressed()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	return c.limits.ReadEntries(&countedBlob{body, c.count}, func(entry *tar.Header, content io.Reader) error {
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
		return false, unusableContent("a layer of the image removes or hides files of /%s, which is not taken: it must be built again, with one disk", diskFolder)
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
