// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image fetches images from web servers and registries, in the background
// and once for all callers that wait, and keeps them by their digest.
//
// Start with Store.Wait. A fetch only fetches: what follows is up to the caller.
//
// In the folder, sha256-<digest> is an image. ref-<hash of a source> names the image that
// the source stood for when it was last fetched.
package image

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image/egress"
)

// DefaultStall is how long a fetch may go without any progress.
const DefaultStall = time.Minute

// Store is a folder of images.
type Store struct {
	// Dir is the engine's folder, Sub the store's in it.
	Dir   *statedir.Dir
	Sub   string
	Clock clock.Clock
	// Fetches tracks the fetches in progress, and Sources says where they may lead. A Store
	// that fetches nothing needs neither.
	Fetches *download.Tracker
	Sources *Sources

	useless uselessContent
}

// Redact returns a source as it is shown: without possible secrets.
func Redact(source string) string { return egress.Redact(source) }

// IsRemote reports whether a source has to be fetched.
func IsRemote(source string) bool {
	for _, scheme := range []string{httpScheme, httpsScheme, ociScheme} {
		if strings.HasPrefix(source, scheme) {
			return true
		}
	}
	return false
}

// The schemes of sources.
const (
	httpScheme  = "http://"
	httpsScheme = "https://"
	ociScheme   = "oci://"
)

// Names in the store: an image by its digest, and a source by its own hash.
const (
	imagePrefix = "sha256-"
	refPrefix   = "ref-"
	lockFile    = "lock"
)

var checksumPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Check refuses what can never be fetched.
func Check(field string, i driver.Image) error {
	switch {
	case i.Checksum != "" && !checksumPattern.MatchString(i.Checksum):
		return driver.Errorf(driver.ErrInvalid, "%s.checksum is %.100q: it must be sha256: and 64 digits of 0-9a-f", field, i.Checksum)
	case !IsRemote(i.Source) && i.Checksum != "":
		return driver.Errorf(driver.ErrUnsupported, "%s.checksum: it is for images that are fetched, and %q is a file", field, i.Source)
	}
	return nil
}

// Digest returns the digest of an image, sha256: and 64 digits. It is the image's
// checksum, or else the digest of what its source stood for when it was last fetched. It
// is empty where only a fetch will show it.
func (s *Store) Digest(i driver.Image) string {
	if i.Checksum != "" {
		return i.Checksum
	}
	content, err := os.ReadFile(s.refPath(i.Source))
	if err != nil {
		return ""
	}
	name, _ := parseRef(content)
	return DigestOf(name)
}

// DigestOf returns the digest of the image in a file of the store.
func DigestOf(path string) string { return strings.Replace(filepath.Base(path), "-", ":", 1) }

// Path returns the path of an image, and whether it is there.
func (s *Store) Path(i driver.Image) (path string, there bool) {
	digest := s.Digest(i)
	if digest == "" {
		return "", false
	}
	path = s.Dir.Path(s.Sub, strings.Replace(digest, ":", "-", 1))
	_, err := os.Stat(path)
	return path, err == nil
}

func (s *Store) refPath(source string) string {
	sum := sha256.Sum256([]byte(source))
	return s.Dir.Path(s.Sub, refPrefix+hex.EncodeToString(sum[:]))
}

// parseRef reads what a source stood for when it was last fetched.
func parseRef(content []byte) (name, source string) {
	name, source, _ = strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	return filepath.Base(name), source
}
