// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source parses the sources of images in specs and records. A driver parses a source once;
// all other code uses its Kind.
//
// Start with Parse.
package source

import (
	"strings"

	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/name"

	"cloudnative.tw/drover/internal/image/egress"
)

// BuiltInText is the source of a small container image that is on this host.
const BuiltInText = "drover://built-in"

// Kind says which form a source has.
type Kind int

const (
	// None means that no source is named.
	None Kind = iota
	// Unknown is any text that is not one of the kinds below.
	Unknown
	// File is a file of the host: an absolute path, with or without the prefix file://.
	File
	// Web is the URL of a disk on a web server.
	Web
	// RegistryDisk is oci:// and the reference of a container disk.
	RegistryDisk
	// Container is the reference of a container image, such as python:3.13 or
	// registry/name@sha256:...
	Container
	// Catalogue is cloud:// and a name of the catalogue.
	Catalogue
	// BuiltIn is the container image of BuiltInText.
	BuiltIn
	// Claim is pvc:// and the name of a PersistentVolumeClaim, which is used without a copy.
	Claim
)

// schemes are the schemes of sources, except for the URLs of web servers.
var schemes = map[string]Kind{"file": File, "oci": RegistryDisk, "cloud": Catalogue, "pvc": Claim}

// Source says where an image comes from. The zero value is the empty source. Two sources are
// equal if their texts are equal.
type Source struct {
	Kind Kind
	// Name is the source without its scheme: a path, the reference of an image, or a name. For
	// Web it is the whole URL.
	Name string

	text string
}

// Parse parses a source. It accepts every text; a driver rejects the kinds that it does not
// support.
func Parse(text string) Source {
	scheme, rest, hasScheme := strings.Cut(text, "://")
	switch kind, ok := schemes[scheme]; {
	case text == "":
		return Source{}
	case text == BuiltInText:
		return Source{BuiltIn, text, text}
	case hasScheme && ok:
		return Source{kind, rest, text}
	case hasScheme && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https")):
		return Source{Web, text, text}
	case strings.HasPrefix(text, "/"):
		return Source{File, text, text}
	case !hasScheme && isReference(text):
		return Source{Container, text, text}
	}
	return Source{Unknown, text, text}
}

// isReference reports whether both container engines and the library that fetches images accept a
// text as the reference of a container image.
func isReference(text string) bool {
	if _, err := reference.ParseNormalizedNamed(text); err != nil {
		return false
	}
	_, err := name.ParseReference(text)
	return err == nil
}

// IsFetched reports whether the image must be fetched before it can be used.
func (s Source) IsFetched() bool {
	switch s.Kind {
	case Web, RegistryDisk, Container, Catalogue, BuiltIn:
		return true
	default: // None, Unknown, File and Claim
		return false
	}
}

// IsContainer reports whether the source is a container image. A fetch may still show that the
// image has only a disk.
func (s Source) IsContainer() bool { return s.Kind == Container || s.Kind == BuiltIn }

// IsPinned reports whether the source always leads to the same container image.
func (s Source) IsPinned() bool {
	return s.Kind == Container && strings.Contains(s.Name, "@sha256:")
}

// Text returns the source as it was parsed. It may hold secrets.
func (s Source) Text() string { return s.text }

// String returns the source without possible secrets, for people.
func (s Source) String() string { return egress.Redact(s.text) }

// MarshalText implements encoding.TextMarshaler.
func (s Source) MarshalText() ([]byte, error) { return []byte(s.text), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *Source) UnmarshalText(text []byte) error {
	*s = Parse(string(text))
	return nil
}
