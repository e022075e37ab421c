// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package catalogue

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
	"regexp"
	"strings"
)

// Checksums says where and how a publisher publishes the checksum of an image.
type Checksums struct {
	// URL is the address of the document.
	URL string `json:"url"`
	// Algorithm is sha256 or sha512.
	Algorithm string `json:"algorithm"`
	// Format is the format of the document: coreutils is the output of sha256sum, and bsd of
	// sha256sum --tag. With digest, the document is about one file, and file names are ignored.
	Format string `json:"format"`
}

// Values of Checksums.Algorithm.
const (
	SHA256 = "sha256"
	SHA512 = "sha512"
)

// Values of Checksums.Format.
const (
	formatCoreutils = "coreutils"
	formatBSD       = "bsd"
	formatDigest    = "digest"
)

func (c Checksums) check() error {
	switch {
	case c.Algorithm != SHA256 && c.Algorithm != SHA512:
		return fmt.Errorf("checksums.algorithm is %.100q: it must be %s or %s", c.Algorithm, SHA256, SHA512)
	case c.Format != formatCoreutils && c.Format != formatBSD && c.Format != formatDigest:
		return fmt.Errorf("checksums.format is %.100q: it must be %s, %s or %s", c.Format, formatCoreutils, formatBSD, formatDigest)
	}
	return checkURL("checksums.url", c.URL)
}

// New returns a new hash of the algorithm.
func (c Checksums) New() hash.Hash {
	if c.Algorithm == SHA512 {
		return sha512.New()
	}
	return sha256.New()
}

// bsdLine is a line such as "SHA256 (disk.img) = 0123".
var bsdLine = regexp.MustCompile(`^([A-Z0-9]+) \((.+)\) = ([0-9A-Fa-f]+)$`)

// Find returns the checksum of a file in a document, in small hexadecimal digits. It ignores other lines, such
// as comments and signatures. Errors do not quote the document.
func (c Checksums) Find(document []byte, file string) (digest string, err error) {
	for line := range strings.Lines(string(document)) {
		found, ok := c.parseLine(strings.TrimSpace(line), file)
		switch {
		case !ok:
		case digest != "" && found != digest:
			return "", fmt.Errorf("%s has two checksums of %s", c.URL, file)
		default:
			digest = found
		}
	}
	if digest == "" {
		return "", fmt.Errorf("%s lacks the %s of %s", c.URL, c.Algorithm, file)
	}
	return digest, nil
}

// parseLine returns the checksum in a line that is about a file.
func (c Checksums) parseLine(line, file string) (digest string, ok bool) {
	var name string
	if c.Format == formatBSD {
		m := bsdLine.FindStringSubmatch(line)
		if m == nil || m[1] != strings.ToUpper(c.Algorithm) {
			return "", false
		}
		name, digest = m[2], m[3]
	} else {
		digest, name, _ = strings.Cut(line, " ")
		name = strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(name, " "), "*"), "./")
	}
	raw, err := hex.DecodeString(digest)
	isOther := c.Format != formatDigest && name != file
	if err != nil || len(raw) != c.New().Size() || isOther {
		return "", false
	}
	return strings.ToLower(digest), true
}
