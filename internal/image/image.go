// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image fetches disk images and container images from web servers and registries, and
// stores them by their digest. It depends on no other part of Drover, so that every program that
// runs machines can use it.
//
// Start with Store.NeedsFetch and Store.Fetch. Package source parses the source of an image,
// package egress makes the requests, package transfer copies the responses, and package
// diskimage reads and makes disk images. containers.go converts a container image to a root, the
// root file system of a machine, with package rootfs; root.go opens a root.
package image

import (
	"errors"
	"fmt"
	"regexp"

	"cloudnative.tw/drover/internal/image/source"
)

// Ref refers to an image. The records of machines contain it.
type Ref struct {
	Source source.Source `json:"source,omitzero"`
	// Checksum is "sha256:" and 64 digits, or empty if any content is accepted. For a container
	// image it is the digest of the manifest.
	Checksum string `json:"checksum,omitempty"`
}

// ParseRef returns the reference for the source and the checksum in a spec.
func ParseRef(text, checksum string) Ref { return Ref{source.Parse(text), checksum} }

// PullPolicy says when an image is fetched; empty means PullIfNotPresent.
type PullPolicy string

// The pull policies, as in the API of Kubernetes.
const (
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullAlways       PullPolicy = "Always"
	PullNever        PullPolicy = "Never"
)

// Kinds of errors, for errors.Is. After any other error a later attempt may succeed.
var (
	// ErrInvalid means that only another reference, or another limit of the operator, can help.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported means that the source does not support a field of the reference, or that
	// nothing here supports the image.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable means that the image is not available now.
	ErrUnavailable = errors.New("unavailable")
	// ErrLocked means that another process has the lock of the store.
	ErrLocked = errors.New("locked")
)

// kindError wraps a kind whose text is not a part of the error's text.
type kindError struct {
	error

	kind error
}

func (e *kindError) Unwrap() []error { return []error{e.error, e.kind} }

func newError(kind error, format string, args ...any) error {
	return &kindError{fmt.Errorf(format, args...), kind}
}

const digestPrefix = "sha256:"

var checksumPattern = regexp.MustCompile(`^` + digestPrefix + `[0-9a-f]{64}$`)

// Validate fails for a reference that can never be fetched. field is its name in the error.
func (r Ref) Validate(field string) error {
	switch {
	case r.Checksum != "" && !checksumPattern.MatchString(r.Checksum):
		return newError(ErrInvalid, "%s.checksum is %.100q: it must be sha256: and 64 digits of 0-9a-f", field, r.Checksum)
	case r.Checksum != "" && r.Source.IsContainer():
		return newError(ErrUnsupported, "%s.checksum: only disks may have it, and %q is a container image: add its digest to its name, as in name@sha256:...", field, r.Source)
	case r.Checksum != "" && !r.Source.IsFetched():
		return newError(ErrUnsupported, "%s.checksum: only images that are fetched may have it, and %q is a file", field, r.Source)
	}
	return nil
}

// Key is a text that is equal for equal references.
func (r Ref) Key() string { return r.Source.Text() + " " + r.Checksum }

// isPinned reports whether the reference always leads to the same image.
func (r Ref) isPinned() bool { return r.Checksum != "" || r.Source.IsPinned() }

// Describe names an image for people. It omits possible secrets in the source.
func (r Ref) Describe() string {
	if r.Checksum == "" {
		return r.Source.String()
	}
	return r.Source.String() + " with the checksum " + r.Checksum
}
