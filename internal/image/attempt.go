// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"os"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/image/egress"
)

// What an image has to leave free on its disk, for machines' disks that grow and for
// everything else that writes there: a twentieth of the disk, but no more than maxKept
// bytes.
const (
	keptShare = 20
	maxKept   = 1 << 30
)

// attempt is one attempt to fetch an image. It counts what is written to it, and accepts
// that as far as there is room and the limit allows.
type attempt struct {
	store *Store
	image driver.Image
	fetch *download.Fetch
	file  *os.File
	sum   hash.Hash

	version    string // the server's version of its content, or nothing
	got, total int64  // total is 0 where it is not known
	err        error  // of this side, which is reported as it is
}

func (s *Store) newAttempt(i driver.Image, file *os.File, f *download.Fetch) *attempt {
	return &attempt{store: s, image: i, fetch: f, file: file, sum: sha256.New()}
}

// download writes an image to the file and checks it.
func (a *attempt) download(ctx context.Context) (digest string, err error) {
	if reference, is := strings.CutPrefix(a.image.Source, ociScheme); is {
		err = a.store.Sources.copyOCI(ctx, reference, a)
	} else {
		err = a.store.Sources.copyHTTP(ctx, a.image.Source, a)
	}
	switch {
	case a.err != nil:
		return "", a.err
	case err != nil:
		return "", explain(err)
	}
	digest = hex.EncodeToString(a.sum.Sum(nil))
	if want := strings.TrimPrefix(a.image.Checksum, "sha256:"); want != "" && want != digest {
		return "", useless("its checksum is sha256:%s, and %s was asked for", digest, a.image.Checksum)
	}
	if err := checkImage(a.file); err != nil {
		return "", useless("%w", err)
	}
	return digest, nil
}

// begin refuses, before any of it is sent, content that was of no use before, that is too
// large, or that there is no room for.
func (a *attempt) begin(version string, total int64) error {
	a.version, a.total = version, total
	if err := a.store.useless.find(keyOf(a.image), version, a.store.Clock.Now()); err != nil {
		a.err = err
		return err
	}
	if limit := a.store.Sources.maxSize; total > limit {
		return final("it has %d bytes: --image-max-size allows %d", total, limit)
	}
	a.err = a.checkRoom(total, fmt.Sprintf("it has %d bytes", total))
	return a.err
}

func (a *attempt) Write(p []byte) (int, error) {
	if a.got += int64(len(p)); a.got > a.store.Sources.maxSize {
		return 0, tooLarge("it has more than", a.store.Sources.maxSize)
	}
	if a.err = a.checkRoom(int64(len(p)), fmt.Sprintf("it has at least %d bytes", a.got)); a.err != nil {
		return 0, a.err
	}
	_, _ = a.sum.Write(p) // never fails
	a.tell()
	n, err := a.file.Write(p)
	a.err = err
	return n, err
}

func (a *attempt) tell() {
	source, got, total := egress.Redact(a.image.Source), float64(a.got)/1e6, float64(a.total)/1e6
	doing := fmt.Sprintf("fetching %s: %.1f MB", source, got)
	if a.total > 0 {
		doing = fmt.Sprintf("fetching %s: %.0f%% (%.1f/%.1f MB)", source, got*100/total, got, total)
	}
	a.fetch.Report(doing)
}

// checkRoom refuses more bytes than there is room for; size says how large the
// image is, as far as that is known.
func (a *attempt) checkRoom(more int64, size string) error {
	dir := a.store.Dir.Path()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	block := uint64(disk.Bsize) //nolint:gosec // A block has a size.
	free, kept := disk.Bavail*block, min(disk.Blocks*block/keptShare, maxKept)
	if uint64(more)+kept <= free { //nolint:gosec // not negative
		return nil
	}
	return fmt.Errorf("%s, and there is no room for it: %d bytes are free on the disk of %s, of which %d have to stay so", size, free, dir, kept)
}
