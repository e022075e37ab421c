// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rootfs makes the root file system of a machine from the layers of a container
// image: one file, in the format EROFS. It unpacks and mounts nothing.
//
// Start with Convert, which reads the layers from one stream, so that it can run in a confined
// process, and with Send (send.go), which writes that stream. Images are not trusted, so
// everything is bounded. entries.go reads the entries of a layer and writes the data of files
// to the output. tree.go merges the entries into the tree of the layers below.
//
// Layers are read from the lowest to the highest, since an entry may be a hard link to a file
// of a lower layer. So the data of a file is written before a higher layer may remove the file.
// In that case the data is replaced by a hole, which uses no space.
package rootfs

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/layer"
)

// Request describes the layers that follow it in the stream.
type Request struct {
	// Seed is the digest of the image. It determines the UUID of the file system.
	Seed string `json:"seed"`
	// Layers are the sizes of the compressed layers, the lowest layer first.
	Layers []int64 `json:"layers"`
	// MaxContent is how many bytes the decompressed layers may have, and MaxSize how many the file
	// system may have.
	MaxContent int64 `json:"maxContent"`
	MaxSize    int64 `json:"maxSize"`
}

// maxRequest bounds the size of a request.
const maxRequest = 16 << 10

// Result describes the new file system, or says why there is none.
type Result struct {
	// Size is the size of the file system and of the file.
	Size int64 `json:"size,omitempty"`
	// Disk is set if the image has only the disk of a virtual machine.
	Disk *Range `json:"disk,omitempty"`
	// Reason says why the conversion failed, and is empty after success. Message is for people.
	Reason  Reason `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Range is a part of the file.
type Range struct {
	Offset int64 `json:"offset"`
	Size   int64 `json:"size"`
}

// Reason says why an image could not be converted.
type Reason string

const (
	// ReasonContent means that the image is damaged, or has files that are not supported.
	ReasonContent Reason = "Content"
	// ReasonTooLarge means that the layers exceed MaxContent.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonOutput means that the file system exceeds MaxSize.
	ReasonOutput Reason = "Output"
	// ReasonMemory means that decompressing a layer needs too much memory.
	ReasonMemory Reason = "Memory"
	// ReasonFailed means that the conversion itself failed, such as a write.
	ReasonFailed Reason = "Failed"
)

// contentError describes a damaged or unsupported part of an image.
type contentError struct{ error }

func newContentError(format string, args ...any) error {
	return &contentError{fmt.Errorf(format, args...)}
}

// outputError means that the conversion failed for a reason other than the image, such as a write.
type outputError struct{ error }

func (e *outputError) Unwrap() error { return e.error }

// maxMessage is how many bytes Result.Message may have.
const maxMessage = 1000

// Convert reads a request and its layers, and writes the file system to an empty file.
func Convert(in io.Reader, out erofs.File) Result {
	result, err := convertLayers(in, out)
	if err == nil {
		return result
	}
	message := err.Error()
	return Result{Reason: reasonOf(err), Message: message[:min(len(message), maxMessage)]}
}

func reasonOf(err error) Reason {
	_, isOutput := errors.AsType[*outputError](err)
	_, isTooLarge := errors.AsType[*layer.TooLargeError](err)
	_, isPath := errors.AsType[*os.PathError](err)
	_, isCall := errors.AsType[*os.SyscallError](err)
	switch {
	case isTooLarge:
		return ReasonTooLarge
	case errors.Is(err, erofs.ErrTooLarge):
		return ReasonOutput
	case compression.IsTooMuchMemory(err):
		return ReasonMemory
	case isOutput, isPath, isCall:
		return ReasonFailed
	}
	return ReasonContent
}

func convertLayers(in io.Reader, out erofs.File) (Result, error) {
	request, err := readRequest(in)
	if err != nil {
		return Result{}, &outputError{err}
	}
	r := &reader{out: erofs.New(out, request.MaxSize), limits: layer.NewLimits(request.MaxContent), tree: newTree(&count{})}
	for number, size := range request.Layers {
		if err := r.readLayer(io.LimitReader(in, size)); err != nil {
			return Result{}, fmt.Errorf("layer %d: %w", number+1, err)
		}
	}
	size, err := r.out.Finish(r.tree.root, request.Seed)
	if err != nil {
		return Result{}, &outputError{err}
	}
	return Result{Size: size, Disk: r.tree.findDisk()}, nil
}

func readRequest(in io.Reader) (Request, error) {
	var request Request
	var size [4]byte
	if _, err := io.ReadFull(in, size[:]); err != nil {
		return request, fmt.Errorf("reading the request: %w", err)
	}
	text := io.LimitReader(in, min(int64(binary.BigEndian.Uint32(size[:])), maxRequest))
	content, err := io.ReadAll(text)
	if err == nil {
		err = json.Unmarshal(content, &request)
	}
	if err != nil {
		return request, fmt.Errorf("reading the request: %w", err)
	}
	return request, nil
}
