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

	"github.com/google/go-containerregistry/pkg/v1"
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
	// maxWindow is how much memory the decompression of a layer may take.
	maxWindow = 64 << 20
)

// archive is the content of an image, of which the disk is copied: the one file in the
// disk's folder, in any layer.
type archive struct {
	out   io.Writer
	found bool
	// sent and content bound the layers' bytes as sent and as decompressed: either may be
	// endless while the other is not.
	sent, content budget
}

// copyDisk copies the disk of an image whose layers have at most limit bytes. It reads
// all of them: whether they match the image's digests shows only at their end.
func copyDisk(image v1.Image, out io.Writer, limit int64) error {
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	if len(layers) > maxLayers {
		return useless("the image has %d layers: it may have %d", len(layers), maxLayers)
	}
	a := &archive{out: out, sent: budget{limit, limit}, content: budget{limit, limit}}
	for _, layer := range layers {
		if err := a.copyFrom(layer); err != nil {
			return err
		}
	}
	if !a.found {
		return useless("there is no disk in /%s of the image", diskFolder)
	}
	return nil
}

func (a *archive) copyFrom(layer v1.Layer) error {
	body, err := layer.Compressed()
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	blob := &countedReader{body, &a.sent}
	decompressed, release, err := decompress(blob)
	if err != nil {
		return err
	}
	defer release()
	content := &countedReader{decompressed, &a.content}
	if err := a.copyEntries(tar.NewReader(content)); err != nil {
		return err
	}
	// An archive ends before its blob does, and the digest is checked at that end.
	if _, err := io.Copy(io.Discard, content); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, blob)
	return err
}

func (a *archive) copyEntries(files *tar.Reader) error {
	for {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		isDisk, err := a.meet(entry)
		if err != nil {
			return err
		}
		if !isDisk {
			continue
		}
		if _, err := io.Copy(a.out, files); err != nil {
			return err
		}
	}
}

// meet reports whether an entry is the disk.
func (a *archive) meet(entry *tar.Header) (isDisk bool, err error) {
	dir, base := path.Split(strings.TrimPrefix(path.Clean("/"+entry.Name), "/"))
	inside := dir == diskFolder+"/"
	hides := strings.HasPrefix(base, whiteout) && (inside || dir == "" && (base == whiteout+diskFolder || base == whiteout+whiteout+".opq"))
	switch {
	case hides:
		return false, useless("a layer of the image removes or hides files of /%s, which is not taken: it must be built anew, with one disk", diskFolder)
	case !inside, strings.HasPrefix(base, "."):
		return false, nil
	case isSparse(entry):
		return false, useless("the disk is a sparse file in its archive, which is not taken: build the image without --sparse")
	case entry.Typeflag != tar.TypeReg:
		return false, nil
	case a.found:
		return false, useless("there is more than one file in /%s of the image: it must hold one disk", diskFolder)
	}
	a.found = true
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

// budget is how many more bytes are accepted.
type budget struct{ left, limit int64 }

// countedReader counts what it reads against a budget.
type countedReader struct {
	io.Reader

	of *budget
}

func (c *countedReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if c.of.left -= int64(n); c.of.left < 0 {
		return 0, tooLarge("the layers of the image have more than", c.of.limit)
	}
	return n, err
}

func tooLarge(what string, limit int64) error {
	return final("%s %d bytes, which is all that --image-max-size allows", what, limit)
}

// decompress returns the content of a layer, whose first bytes say how it is compressed.
func decompress(blob io.Reader) (content io.Reader, release func(), err error) {
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
		r, err := zstd.NewReader(buffered, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	return buffered, func() {}, nil
}
