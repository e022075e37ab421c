// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rootfs makes the root file system of a machine from the layers of a container
// image: one file, in the format EROFS. Nothing is unpacked or mounted for that.
//
// Start with Convert, which reads all of an image from one stream, so that it can run in a
// process that can do nothing else, and with Send (send.go), which writes that stream. What
// is converted comes from strangers: everything is bounded. entries.go reads the entries of a
// layer and writes the data of files to the output, and tree.go merges them into the tree of
// the layers below.
//
// The layers are read from the lowest to the highest, since an entry may be a further name of a
// file of a layer below. The data of a file that a higher layer removes
// has been written by then. It is removed again: it leaves a hole, which takes no room.
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

// Request says what is converted. It precedes the layers in the stream.
type Request struct {
	// Seed determines the UUID of the file system: it is the digest of the image.
	Seed string `json:"seed"`
	// Layers are the sizes of the layers as they are sent, in their order, the lowest first.
	Layers []int64 `json:"layers"`
	// MaxContent is how many bytes the layers may have decompressed, and MaxSize how many the
	// file system may have.
	MaxContent int64 `json:"maxContent"`
	MaxSize    int64 `json:"maxSize"`
}

// maxRequest is more than a request has.
const maxRequest = 16 << 10

// Result describes the file system that was made.
type Result struct {
	// Size is the size of the file system, which is all of the file.
	Size int64 `json:"size,omitempty"`
	// Disk is set if the image has nothing but a disk of a virtual machine.
	Disk *Range `json:"disk,omitempty"`
	// Reason says why nothing was made; empty if something was. Message is for people.
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
	// ReasonContent means that the image has something that no root can have, or is damaged.
	ReasonContent Reason = "Content"
	// ReasonTooLarge means that the layers have too many bytes.
	ReasonTooLarge Reason = "TooLarge"
	// ReasonOutput means that the file system would have too many bytes.
	ReasonOutput Reason = "Output"
	// ReasonMemory means that decompressing a layer takes too much memory.
	ReasonMemory Reason = "Memory"
	// ReasonFailed means that something failed here, such as a write.
	ReasonFailed Reason = "Failed"
)

// contentError says what an image has that no root can have.
type contentError struct{ error }

func newContentError(format string, args ...any) error {
	return &contentError{fmt.Errorf(format, args...)}
}

// outputError says that writing failed.
type outputError struct{ error }

func (e *outputError) Unwrap() error { return e.error }

// maxMessage is how many bytes a message has at most.
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
