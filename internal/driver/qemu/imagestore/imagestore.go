// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package imagestore fetches images from web servers and registries, in the
// background and once for all who wait, and keeps them by their digest.
//
// Start with Store.Wait. A fetch only fetches: what follows is up to who waits.
//
// In the folder, sha256-<digest> is an image, and ref-<hash of a source> names
// the one that the source stood for when it was last fetched.
package imagestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/enginedir"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
)

const (
	// tellProgress is how often a fetch's progress is worth another look.
	tellProgress = 2 * time.Second
	// DefaultStall is how long a fetch may go without any progress.
	DefaultStall = time.Minute
)

// Store is a folder of images, and the fetches under way.
type Store struct {
	// Dir is the engine's folder, Sub the store's in it.
	Dir   *enginedir.Dir
	Sub   string
	Clock clock.WithTicker
	// Stall is how long a fetch may go without any progress.
	Stall time.Duration
	// Tell is called with servers that are worth another look.
	Tell func(types.UID)

	mu      sync.Mutex
	fetches map[key]*fetch
	claims  map[types.UID]*claim
}

// key is what tells one fetch from another.
type key struct {
	source, checksum string
}

// IsRemote tells whether a source has to be fetched.
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

// IsUnchecked tells whether whoever can change what a server sends, chooses what
// the image is. A registry is asked by digest.
func IsUnchecked(i driver.Image) bool {
	return i.Checksum == "" && IsRemote(i.Source) && !strings.HasPrefix(i.Source, ociScheme)
}

// Path of an image that is there.
func (s *Store) Path(i driver.Image) (path string, there bool) {
	name := strings.Replace(i.Checksum, ":", "-", 1)
	if name == "" {
		content, err := os.ReadFile(s.refPath(i.Source))
		if err != nil {
			return "", false
		}
		name, _ = parseRef(content)
	}
	path = s.Dir.Path(s.Sub, name)
	_, err := os.Stat(path) //nolint:gosec // in the store, since only the last part of a name counts
	return path, err == nil
}

func (s *Store) refPath(source string) string {
	sum := sha256.Sum256([]byte(source))
	return s.Dir.Path(s.Sub, refPrefix+hex.EncodeToString(sum[:]))
}

// parseRef reads what a source stood for when it was fetched last.
func parseRef(content []byte) (name, source string) {
	name, source, _ = strings.Cut(strings.TrimSuffix(string(content), "\n"), "\n")
	return filepath.Base(name), source
}

// get fetches an image and puts it into its place.
func (s *Store) get(ctx context.Context, f *fetch) error {
	tmp, err := s.Dir.Temp()
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	out, err := os.OpenFile(filepath.Join(tmp, "image"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600) //nolint:gosec // in the engine's folder
	if err != nil {
		return err
	}
	digest, err := s.download(ctx, f, out)
	if err == nil {
		err = checkImage(out)
	}
	if err := errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	name := imagePrefix + digest
	// Not renamed: disks stand on the file that may be there already.
	if err := os.Link(out.Name(), s.Dir.Path(s.Sub, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.Dir.Replace(s.refPath(f.key.source), []byte(name+"\n"+f.key.source+"\n"))
}

// download writes an image to out and checks what came.
func (s *Store) download(ctx context.Context, f *fetch, out io.Writer) (digest string, err error) {
	body, total, err := open(ctx, f.key.source)
	if err != nil {
		return "", err
	}
	defer func() { _ = body.Close() }()
	f.setTotal(total)
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum, f), body)
	if err != nil {
		return "", err
	}
	if total > 0 && n != total {
		return "", fmt.Errorf("it ended after %d of %d bytes", n, total)
	}
	digest = hex.EncodeToString(sum.Sum(nil))
	if want := strings.TrimPrefix(f.key.checksum, "sha256:"); want != "" && want != digest {
		return "", fmt.Errorf("its checksum is sha256:%s, and %s was asked for", digest, f.key.checksum)
	}
	return digest, nil
}

// open returns an image's content, and its length where that is known.
func open(ctx context.Context, source string) (io.ReadCloser, int64, error) {
	if reference, ok := strings.CutPrefix(source, ociScheme); ok {
		body, err := openOCI(ctx, reference)
		return body, 0, err
	}
	return openHTTP(ctx, source)
}

func checkImage(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	_, err = diskimage.Probe(f, info.Size())
	return err
}
