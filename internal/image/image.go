// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image fetches disk images and container images from web servers and registries, and
// stores them by their digest. It depends on no other part of Drover, so that every program that
// runs machines can use it.
//
// Start with Store.NeedsFetch and Store.Fetch. Package source says what an image's source is,
// package egress makes the requests, package transfer copies what is sent, and package
// diskimage reads and makes the disk images themselves. Of a container image, package
// rootfs makes the root of a machine (containers.go), which Store.OpenRoot opens (root.go).
package image

import (
	"errors"
	"fmt"
	"regexp"

	"cloudnative.tw/drover/internal/image/source"
)

// Ref refers to an image. Machines' records contain it.
type Ref struct {
	Source source.Source `json:"source,omitzero"`
	// Checksum is "sha256:" and 64 digits, or empty if any content is accepted. Of a container
	// image it is the digest of its manifest.
	Checksum string `json:"checksum,omitempty"`
}

// ParseRef returns the reference that a spec has.
func ParseRef(text, checksum string) Ref { return Ref{source.Parse(text), checksum} }

// PullPolicy says when an image is fetched; empty means PullIfNotPresent.
type PullPolicy string

// The pull policies, as in the API of Kubernetes.
const (
	PullIfNotPresent PullPolicy = "IfNotPresent"
	PullAlways       PullPolicy = "Always"
	PullNever        PullPolicy = "Never"
)

// Kinds of errors, for errors.Is. Every other error may be gone at a later attempt.
var (
	// ErrInvalid means that only another reference, or another limit of the operator, can help.
	ErrInvalid = errors.New("invalid")
	// ErrUnsupported means that the reference has a field that its source does not support.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable means that the image is not available now.
	ErrUnavailable = errors.New("unavailable")
	// ErrLocked means that another process has the lock of the store.
	ErrLocked = errors.New("locked")
)

// kindError is an error that reads without the text of its kind.
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

// Validate refuses a reference that can never be fetched. field names it in the error.
func (r Ref) Validate(field string) error {
	switch {
	case r.Checksum != "" && !checksumPattern.MatchString(r.Checksum):
		return newError(ErrInvalid, "%s.checksum is %.100q: it must be sha256: and 64 digits of 0-9a-f", field, r.Checksum)
	case r.Checksum != "" && r.Source.IsContainer():
		return newError(ErrUnsupported, "%s.checksum: it is for disks, and %q is a container image: write its digest behind its name, as in name@sha256:...", field, r.Source)
	case r.Checksum != "" && !r.Source.IsFetched():
		return newError(ErrUnsupported, "%s.checksum: it is for images that are fetched, and %q is a file", field, r.Source)
	}
	return nil
}

// Key identifies the content that a fetch of the reference yields.
func (r Ref) Key() string { return r.Source.Text() + " " + r.Checksum }

// isPinned reports whether a reference stands for the same image forever.
func (r Ref) isPinned() bool { return r.Checksum != "" || r.Source.IsPinned() }

// Describe names an image for people, without possible secrets in its source.
func (r Ref) Describe() string {
	if r.Checksum == "" {
		return r.Source.String()
	}
	return r.Source.String() + " with the checksum " + r.Checksum
}
