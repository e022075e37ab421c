// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/image/transfer"
)

// DefaultStall is how long a fetch may make no progress.
const DefaultStall = time.Minute

// Progress is notified of the progress of a fetch.
type Progress interface {
	// ResetStallTimer is called when data arrives, even if none of it is used.
	ResetStallTimer()
	// Report is called with the status of the fetch, for people. It implies ResetStallTimer.
	Report(status string)
	// Expect is called before the content arrives, with the number of bytes that the server
	// states, 0 if unknown. If it returns an error, the fetch ends with that error.
	Expect(total int64) error
	// Received is called with the number of bytes that have arrived since the last call.
	Received(bytes int64)
}

// NeedsFetch reports whether an image must be fetched before it can be used. It fails with
// ErrUnavailable if the pull policy prevents the fetch.
func (s *Store) NeedsFetch(ref Ref, policy PullPolicy) (bool, error) {
	_, exists := s.Path(ref)
	if policy == PullNever && !exists {
		return false, newError(ErrUnavailable, "image %s was not fetched before, and its pullPolicy is Never", ref.Source)
	}
	mayHaveChanged := (policy == PullAlways || ref.Source.Kind == source.BuiltIn) && !ref.isPinned() // the built-in image changes with Drover
	return !exists || mayHaveChanged, nil
}

// Fetch fetches an image into the store, without a time limit. The caller may cancel ctx when
// there is no progress.
func (s *Store) Fetch(ctx context.Context, ref Ref, progress Progress) error {
	if err := s.fetchImage(ctx, ref, progress); err != nil {
		return fmt.Errorf("image %s: %w", ref.Source, err)
	}
	return nil
}

func (s *Store) fetchImage(ctx context.Context, ref Ref, progress Progress) error {
	staging, remove, err := s.Stage()
	if err != nil {
		return err
	}
	defer remove()
	fetchTo := s.fetchDisk
	if ref.Source.IsContainer() {
		fetchTo = s.fetchContainer
	}
	name, err := fetchTo(ctx, staging, ref, progress)
	if err != nil {
		return err
	}
	if ref.Source.IsContainer() && ref.Checksum != "" {
		return nil // the source may lead to another image
	}
	return atomicfile.Folder{Path: staging}.Replace(s.refPath(ref.Source.Text()), formatRefFile(name, ref.Source.Text()), 0o600, nil)
}

// diskFile is the name of a disk in the staging folder.
const diskFile = "image"

// fetchDisk fetches a disk, and returns the name of its file in the store.
func (s *Store) fetchDisk(ctx context.Context, staging string, ref Ref, progress Progress) (name string, err error) {
	path := filepath.Join(staging, diskFile)
	digest, err := s.writeFile(path, ref, progress, func(a *attempt) (string, error) { return a.fetchContent(ctx) })
	if err != nil {
		return "", err
	}
	name = imagePrefix + digest
	return name, s.AddFile(path, name)
}

// AddFile adds a file from the staging folder to the store. It keeps an existing file with that
// name, which may be the backing file of disks.
func (s *Store) AddFile(path, name string) error {
	destination := s.filePath(name)
	point := crashpoint.Begin("add image", destination)
	err := os.Link(path, destination)
	point.End()
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// Sync before the caller records a disk that uses the image.
	return atomicfile.SyncFolder(s.filePath(""))
}

// writeFile calls fill to write a new file, and remembers the rejection if the content is unusable.
func (s *Store) writeFile(path string, ref Ref, progress Progress, fill func(*attempt) (string, error)) (result string, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400) //nolint:gosec // in the staging folder
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	a := &attempt{store: s, ref: ref, progress: progress, file: file, out: &diskspace.File{File: file, Disk: s.Space}}
	a.copy = transfer.Copy{Out: a, Limit: s.Sources.limit, OnData: progress.ResetStallTimer, OnSent: a.receiveBytes, Begin: a.checkContent}
	result, err = fill(a)
	rejected := rejection{version: a.version, at: s.Clock.Now(), err: a.err, needs: a.needs}
	if a.err == nil {
		rejected.err = err
	}
	content, isUnusable := errors.AsType[*contentError](err)
	if isUnusable {
		rejected.err, rejected.needs = content.error, 0
	}
	if isUnusable || a.needs > 0 {
		s.rejections.remember(ref.Key(), rejected)
	}
	if err != nil {
		return "", err
	}
	return result, file.Sync()
}

// attempt is one attempt to fetch an image. Its methods count what arrives, and stop at the
// limit and when the disk is full.
type attempt struct {
	store    *Store
	ref      Ref
	progress Progress
	file     *os.File
	out      *diskspace.File // writes to file
	copy     transfer.Copy   // writes to the attempt's WriteAt

	published       *published // nil unless the source is a name of the catalogue
	version         string     // the server's version of its content, empty if the server states none
	received, total int64      // bytes; total is 0 if unknown
	needs           int64      // minimum of free bytes for another attempt, if the disk was too full; else 0
	err             error      // an error of this host, which is not explained as the server's
}

// copySource copies the disk of a source that is not a container image.
func (a *attempt) copySource(ctx context.Context) error {
	from := a.store.Sources
	switch a.ref.Source.Kind {
	case source.RegistryDisk:
		return from.copyOCI(ctx, a)
	case source.Catalogue:
		return from.copyCloud(ctx, a)
	default:
		return a.copy.FromWeb(ctx, from.client, a.ref.Source.Name)
	}
}

// fetchContent writes an image to the file and checks it.
func (a *attempt) fetchContent(ctx context.Context) (digest string, err error) {
	err = a.copySource(ctx)
	switch {
	case a.err != nil:
		return "", a.err
	case err != nil:
		return "", explainError(err)
	}
	return a.finishFile()
}

// finishFile checks a completely written disk, and returns its digest.
func (a *attempt) finishFile() (digest string, err error) {
	if err := a.published.checkSums(); err != nil {
		return "", err
	}
	_, err = a.copy.Finish(a.file, a.ref.Checksum)
	return strings.TrimPrefix(a.copy.Checksum(), digestPrefix), contentErrorOf(err)
}

// checkContent fails, before content arrives, if the content was rejected before, or is larger than
// the whole disk. It does not compare the size with the free space, since zeros need no space.
func (a *attempt) checkContent(version string, total int64) error {
	a.version, a.total = a.published.versionFor(version), total
	free, err := a.store.Space.Free()
	if err != nil {
		a.err = err
		return err
	}
	if err := a.store.rejections.findRejection(a.ref.Key(), a.version, free, a.store.Clock.Now()); err != nil {
		a.err = err
		return err
	}
	if err := a.copy.Limit.Check(total); err != nil {
		return contentErrorOf(err)
	}
	if a.err = a.checkTotal(); a.err == nil {
		a.err = a.progress.Expect(total)
	}
	return a.err
}

// receiveBytes counts received bytes, and hashes them for the publisher's checksum.
func (a *attempt) receiveBytes(sent []byte) {
	a.countBytes(len(sent))
	a.published.receiveBytes(sent)
}

// countBytes counts received bytes, and reports the progress.
func (a *attempt) countBytes(bytes int) {
	a.received += int64(bytes)
	a.progress.Received(int64(bytes))
	a.reportProgress()
}

// WriteAt implements io.WriterAt for the content without holes.
func (a *attempt) WriteAt(p []byte, offset int64) (int, error) {
	n, err := a.out.WriteAt(p, offset)
	if err != nil {
		a.err = a.explainWrite("the image", err)
		return n, a.err
	}
	return n, nil
}

// explainWrite adds to a write error the size so far, and notes how much free space another attempt needs.
func (a *attempt) explainWrite(file string, err error) error {
	if full, ok := errors.AsType[*diskspace.FullError](err); ok {
		a.needs = full.Needed
	}
	return fmt.Errorf("%s has at least %d bytes: %w", file, max(a.copy.Length(), a.out.Written()), err)
}

func (a *attempt) reportProgress() {
	from, received, total := a.ref.Source, float64(a.received)/1e6, float64(a.total)/1e6
	status := fmt.Sprintf("fetching %s: %.1f MB", from, received)
	if a.total > 0 {
		status = fmt.Sprintf("fetching %s: %.0f%% (%.1f/%.1f MB)", from, received*100/total, received, total)
	}
	a.progress.Report(status)
}

// checkTotal fails if an image is larger than the whole disk.
func (a *attempt) checkTotal() error {
	size, err := a.store.Space.Size()
	if err == nil && a.total > size {
		err = fmt.Errorf("the image has %d bytes, and there is no space for it: the disk of %s has %d bytes", a.total, a.store.Dir, size)
	}
	return err
}
