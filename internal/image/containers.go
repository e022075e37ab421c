// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/image/source"
)

// Converter converts the layers of a container image to a file system. Layers are not trusted, so
// package converter does that in a confined process; rootfs.ConvertHere is for tests. The error is
// a rootfs.WriteError, a rootfs.ConverterError, or the error of a layer that could not be read.
type Converter func(ctx context.Context, request rootfs.Request, open rootfs.Open, out erofs.File) (rootfs.Result, error)

// container is a container image in a registry.
type container struct {
	v1.Image

	digest string
	layers []v1.Layer
	sizes  []int64 // of the compressed layers
	config RunConfig
}

// findContainer finds a container image in its registry, and checks its manifest and configuration
// before any layer is fetched.
//
// All VMs use the logins of the operator's Docker configuration. So every VM may use an image in
// the store, whichever VM it was fetched for.
func (s *Sources) findContainer(ctx context.Context, ref Ref, onData func()) (c *container, err error) {
	c = &container{}
	if c.Image, err = s.findImage(ctx, ref, onData); err != nil {
		return nil, err
	}
	digest, err := c.Digest()
	if err != nil {
		return nil, err
	}
	if c.digest, err = checkDigest(digest); err != nil {
		return nil, err
	}
	if c.sizes, err = measureLayers(c.Image, s.limit.Bytes); err != nil {
		return nil, err
	}
	if c.config, err = readConfig(c.Image); err != nil {
		return nil, err
	}
	c.layers, err = c.Layers()
	return c, err
}

func (s *Sources) findImage(ctx context.Context, ref Ref, onData func()) (v1.Image, error) {
	if ref.Source.Kind == source.BuiltIn {
		found, err := tarball.ImageFromPath(s.builtIn, nil)
		if err != nil {
			return nil, unusableContent("reading the built-in image, which a machine without image.source needs, from the folder of --qemu-kernel (make guest makes it): %w", err)
		}
		return found, nil
	}
	found, err := s.findManifest(ctx, ref, onData)
	if err != nil {
		return nil, err
	}
	return found.Image()
}

// findManifest queries the manifest of the checksum first, since the reference may lead to another image now.
func (s *Sources) findManifest(ctx context.Context, ref Ref, onData func()) (*remote.Descriptor, error) {
	parsed, options, err := s.parseReference(ctx, ref.Source.Name, onData)
	if err != nil {
		return nil, err
	}
	if ref.Checksum == "" {
		return remote.Get(parsed, options...)
	}
	found, err := remote.Get(parsed.Context().Digest(ref.Checksum), options...)
	if response, ok := errors.AsType[*transport.Error](err); ok && response.StatusCode == http.StatusNotFound {
		return remote.Get(parsed, options...) // the checksum may be the digest of a disk in the image
	}
	return found, err
}

// fetchContainer fetches a container image, and returns the name of its file in the store: a
// root, or a disk if the image has only a disk. It does not fetch a root that exists.
func (s *Store) fetchContainer(ctx context.Context, staging string, ref Ref, progress Progress) (name string, err error) {
	found, err := s.Sources.findContainer(ctx, ref, progress.ResetStallTimer)
	if err != nil {
		return "", explainError(err)
	}
	name = rootName(found.digest)
	if _, err := os.Stat(s.filePath(name)); err == nil {
		return name, ref.checkDigest(found.digest)
	}
	path := filepath.Join(staging, "root")
	disk, err := s.writeFile(path, ref, progress, func(a *attempt) (string, error) { return a.convertLayers(ctx, found) })
	if err != nil {
		return "", err
	}
	if disk == "" {
		return name, s.AddFile(path, name)
	}
	return disk, s.AddFile(filepath.Join(staging, diskFile), disk)
}

// checkDigest fails if the checksum of the reference is another digest.
func (r Ref) checkDigest(digest string) error {
	if r.Checksum != "" && r.Checksum != digest {
		return unusableContent("the digest of the image is %s, and must be %s", digest, r.Checksum)
	}
	return nil
}

// convertLayers fetches the layers of an image, and writes its root, with the configuration. If the
// image has only a disk, convertLayers copies the disk to a separate file, and returns its name.
func (a *attempt) convertLayers(ctx context.Context, c *container) (disk string, err error) {
	if err := a.checkContent(c.digest, sumSizes(c.sizes)); err != nil {
		return "", err
	}
	if a.store.Convert == nil {
		return "", newError(ErrUnsupported, "this driver does not support container images")
	}
	limit := a.store.Sources.limit.Bytes
	request := rootfs.Request{Seed: c.digest, Layers: c.sizes, MaxContent: limit, MaxSize: limit}
	point := crashpoint.Begin("convert image", c.digest)
	result, err := a.store.Convert(ctx, request, func(number int) (io.ReadCloser, error) {
		blob, err := c.layers[number].Compressed()
		return &countedBlob{blob, a.countBytes}, err
	}, a.out)
	point.End()
	if failed, ok := errors.AsType[*rootfs.ConverterError](err); ok {
		return "", failed
	}
	if failed, ok := errors.AsType[*rootfs.WriteError](err); ok {
		return "", a.explainWrite("its root", failed.Err)
	}
	if err != nil {
		return "", explainError(err)
	}
	if err := a.explainResult(result); err != nil {
		return "", err
	}
	if result.Disk != nil {
		return a.extractDisk(*result.Disk)
	}
	if err := a.ref.checkDigest(c.digest); err != nil {
		return "", err
	}
	if err := a.checkRoot(result.Size); err != nil {
		return "", fmt.Errorf("checking the root that was made of the image: %w", err)
	}
	if err := writeTrailing(a.out, result.Size, c.config); err != nil {
		return "", a.explainWrite("its root", err)
	}
	return "", nil
}

// checkRoot checks that a converter has made a root of the size that it states.
func (a *attempt) checkRoot(size int64) error {
	info, err := a.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() != size {
		return fmt.Errorf("it has %d bytes, and its converter says %d", info.Size(), size)
	}
	return erofs.Check(a.file, size)
}

// explainResult returns an error if the converter has rejected the image.
func (a *attempt) explainResult(r rootfs.Result) error {
	message := printable(r.Message)
	switch r.Reason {
	case "":
		return nil
	case rootfs.ReasonContent:
		return unusableContent("the image cannot be the root of a machine: %s", message)
	case rootfs.ReasonTooLarge:
		return tooLargeError("the layers of the image have more than", a.store.Sources.limit.Bytes)
	case rootfs.ReasonMemory:
		return errTooMuchMemory()
	case rootfs.ReasonOutput:
		return tooLargeError("the root of the image has more than", a.store.Sources.limit.Bytes)
	case rootfs.ReasonFailed:
		return fmt.Errorf("converting the image failed: %s", message)
	}
	return fmt.Errorf("converting the image failed for an unknown reason, %.40q", string(r.Reason))
}

// maxMessage is how many bytes of a converter's message an error quotes.
const maxMessage = 1000

// printable makes a message safe to print, since an image may have taken over the converter that
// sent it.
func printable(message string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '?'
	}, strings.ToValidUTF8(message[:min(len(message), maxMessage)], "?"))
}

// countedBlob is the content of a layer. It calls onRead with the number of bytes after each read.
type countedBlob struct {
	io.ReadCloser

	onRead func(bytes int)
}

// Read implements io.Reader.
func (b *countedBlob) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.onRead(n)
	return n, err
}

// extractDisk copies the disk in a root to a separate file, and returns its name in the store.
func (a *attempt) extractDisk(disk rootfs.Range) (string, error) {
	path := filepath.Join(filepath.Dir(a.file.Name()), diskFile)
	return a.store.writeFile(path, a.ref, a.progress, func(d *attempt) (string, error) {
		d.version = a.version
		if _, err := io.Copy(&d.copy, io.NewSectionReader(a.file, disk.Offset, disk.Size)); err != nil {
			return "", err
		}
		digest, err := d.finishFile()
		return imagePrefix + digest, err
	})
}
