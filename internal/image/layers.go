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

// diskFolder is the folder with the disk in a container disk.
const diskFolder = "disk"

// diskCopier copies the disk in a container disk: the only file in diskFolder, in any layer.
type diskCopier struct {
	out    io.Writer
	found  bool
	limits *layer.Limits
	onRead func(bytes int)
}

// copyDisk copies the disk in an image whose layers have at most limit bytes. It reads all
// layers to their ends, since a wrong digest shows only there. It calls onRead with the number
// of bytes after each read.
func copyDisk(image v1.Image, out io.Writer, limit int64, onRead func(bytes int)) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	c := &diskCopier{out: out, limits: layer.NewLimits(limit), onRead: onRead}
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

// measureLayers returns the sizes of the layers of an image, and fails if their sum exceeds limit. It checks the sizes in
// the manifest before any blob is read, since the library trusts them: it reads a blob up to its size, without a limit if
// the size is -1, and uses the first size if a digest occurs twice.
func measureLayers(image v1.Image, limit int64) (sizes []int64, err error) {
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	if n := len(manifest.Layers); n > layer.MaxCount {
		return nil, unusableContent("the image has %d layers: it may have at most %d", n, layer.MaxCount)
	}
	if size := manifest.Config.Size; size < 0 || size > maxConfigFile {
		return nil, unusableContent("the configuration of the image has %d bytes: it may have 0 to %d", size, maxConfigFile)
	}
	stated := map[v1.Hash]int64{manifest.Config.Digest: manifest.Config.Size}
	for _, l := range manifest.Layers {
		first, isTwice := stated[l.Digest]
		switch {
		case l.Size <= 0: // even an empty archive has some bytes
			return nil, unusableContent("a layer of the image has %d bytes: it must have 1 or more", l.Size)
		case isTwice && l.Size != first:
			return nil, unusableContent("the manifest of the image states the sizes %d and %d for the same blob", first, l.Size)
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
	return c.limits.ReadEntries(&countedBlob{body, c.onRead}, func(entry *tar.Header, content io.Reader) error {
		isDisk, err := c.checkEntry(entry)
		if err == nil && isDisk {
			_, err = io.Copy(c.out, content)
		}
		return err
	})
}

// checkEntry reports whether an entry is the disk. It fails for entries that make the disk
// ambiguous.
func (c *diskCopier) checkEntry(entry *tar.Header) (isDisk bool, err error) {
	dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
	isInside := dir == diskFolder+"/"
	hidesFolder := dir == "" && (base == layer.Whiteout+diskFolder || base == layer.Opaque)
	switch {
	case strings.HasPrefix(base, layer.Whiteout) && (isInside || hidesFolder):
		return false, unusableContent("a layer of the image removes or hides files of /%s, which is not supported: build the image again, with one disk", diskFolder)
	case !isInside, strings.HasPrefix(base, "."):
		return false, nil
	case layer.IsSparse(entry):
		return false, unusableContent("the disk is a sparse file in its archive, which is not supported: build the image without --sparse")
	case entry.Typeflag != tar.TypeReg:
		return false, nil
	case c.found:
		return false, unusableContent("there is more than one file in /%s of the image: it must hold one disk", diskFolder)
	}
	c.found = true
	return true, nil
}
