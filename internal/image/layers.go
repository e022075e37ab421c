// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/zstd"
)

const (
	// diskFolder is the folder of the disk in an image for machines, as in container disks.
	diskFolder = "disk"
	// whiteout is the prefix of the name of an entry by which a layer removes or hides what
	// layers below have. Images for machines have none.
	whiteout = ".wh."
	// maxLayers is how many layers an image may have, as in container engines.
	maxLayers = 127
	// maxWindowSize is how much memory the decompression of a layer may take.
	maxWindowSize = 64 << 20
)

// diskCopier copies the disk of an image: the one file in the disk's folder, in any
// layer.
type diskCopier struct {
	out   io.Writer
	found bool
	// compressed and content limit the layers' bytes as sent and as decompressed: either may
	// be endless while the other is not.
	compressed, content byteLimit
}

// copyDisk copies the disk of an image whose layers have at most limit bytes. It reads
// all of them: whether they match the image's digests shows only at their end.
func copyDisk(image v1.Image, out io.Writer, limit int64) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	if len(layers) > maxLayers {
		return unusableContent("the image has %d layers: it may have %d", len(layers), maxLayers)
	}
	c := &diskCopier{out: out, compressed: byteLimit{limit, limit}, content: byteLimit{limit, limit}}
	for _, layer := range layers {
		if err := c.copyLayer(layer); err != nil {
			return err
		}
	}
	if !c.found {
		return unusableContent("there is no disk in /%s of the image", diskFolder)
	}
	return nil
}

func (c *diskCopier) copyLayer(layer v1.Layer) error {
	body, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	blob := &limitedReader{body, &c.compressed}
	decompressed, release, err := decompressLayer(blob)
	if err != nil {
		return err
	}
	defer release()
	content := &limitedReader{decompressed, &c.content}
	if err := c.copyEntries(tar.NewReader(content)); err != nil {
		return err
	}
	// An archive ends before its blob does, and the digest is checked at that end.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, blob)
	return err
}

func (c *diskCopier) copyEntries(files *tar.Reader) error {
	for {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		isDisk, err := c.checkEntry(entry)
		if err != nil {
			return err
		}
		if !isDisk {
			continue
		}
		if _, err := io.Copy(c.out, files); err != nil {
			return err
		}
	}
}

// checkEntry reports whether an entry is the disk. It refuses what would make the disk
// ambiguous.
func (c *diskCopier) checkEntry(entry *tar.Header) (isDisk bool, err error) {
	dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
	inside := dir == diskFolder+"/"
	hides := strings.HasPrefix(base, whiteout) && (inside || dir == "" && (base == whiteout+diskFolder || base == whiteout+whiteout+".opq"))
	switch {
	case hides:
		return false, unusableContent("a layer of the image removes or hides files of /%s, which is not taken: it must be built anew, with one disk", diskFolder)
	case !inside, strings.HasPrefix(base, "."):
		return false, nil
	case isSparse(entry):
		return false, unusableContent("the disk is a sparse file in its archive, which is not taken: build the image without --sparse")
	case entry.Typeflag != tar.TypeReg:
		return false, nil
	case c.found:
		return false, unusableContent("there is more than one file in /%s of the image: it must hold one disk", diskFolder)
	}
	c.found = true
	return true, nil
}

// isSparse reports whether an entry has holes, which cost nothing to send but much to
// write.
func isSparse(entry *tar.Header) bool {
	for key := range entry.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return entry.Typeflag == tar.TypeGNUSparse
}

// byteLimit is how many bytes are accepted, and how many of these are left.
type byteLimit struct{ left, limit int64 }

// limitedReader counts what it reads against a limit, which other readers may share.
type limitedReader struct {
	io.Reader

	limit *byteLimit
}

func (r *limitedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if r.limit.left -= int64(n); r.limit.left < 0 {
		return 0, tooLargeError("the layers of the image have more than", r.limit.limit)
	}
	return n, err
}

func tooLargeError(what string, limit int64) error {
	return invalidContent("%s %d bytes, which is all that --image-max-size allows", what, limit)
}

// decompressLayer returns the content of a layer, whose first bytes say how it is
// compressed.
func decompressLayer(blob io.Reader) (content io.Reader, release func(), err error) {
	buffered := bufio.NewReader(blob)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		r, err := gzip.NewReader(buffered)
		return r, func() {}, err
	case bytes.Equal(magic, []byte("\x28\xb5\x2f\xfd")):
		r, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindowSize), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return buffered, func() {}, nil
}
