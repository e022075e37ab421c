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
	"cloudnative.tw/drover/internal/image/room"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/image/transfer"
)

// DefaultStall is how long a fetch may go without any progress.
const DefaultStall = time.Minute

// Progress is notified of the progress of a fetch.
type Progress interface {
	// ResetStallTimer is called when data arrives, even if none of it is used.
	ResetStallTimer()
	// Report is called with the status of the fetch, for people. It implies ResetStallTimer.
	Report(status string)
	// Expect is called before content is sent, with the bytes that it has according to its server;
	// 0 means that this is not known. A fetch for which it fails ends with that error.
	Expect(total int64) error
	// Received is called with the number of bytes of the content that have come.
	Received(bytes int64)
}

// NeedsFetch reports whether an image has to be fetched before it can be used. It fails
// with ErrUnavailable if the pull policy prevents that.
func (s *Store) NeedsFetch(ref Ref, policy PullPolicy) (bool, error) {
	_, exists := s.Path(ref)
	if policy == PullNever && !exists {
		return false, newError(ErrUnavailable, "image %s is not among those that were fetched, and its pullPolicy is Never", ref.Source)
	}
	// What never changes never has to be fetched again. The built-in image changes with Drover.
	return !exists || (policy == PullAlways || ref.Source.Kind == source.BuiltIn) && !ref.isPinned(), nil
}

// Fetch fetches an image and puts it into its place. It does not limit the time that this
// takes; the caller may cancel ctx when there is no progress.
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
		return nil // which the source need not stand for
	}
	return atomicfile.Folder{Path: staging}.Replace(s.refPath(ref.Source.Text()), formatRefFile(name, ref.Source.Text()), 0o600, nil)
}

// diskFile is the name of a disk in the staging folder.
const diskFile = "image"

// fetchDisk fetches an image that is a disk, and returns the name of its file in the store.
func (s *Store) fetchDisk(ctx context.Context, staging string, ref Ref, progress Progress) (name string, err error) {
	path := filepath.Join(staging, diskFile)
	digest, err := s.writeFile(path, ref, progress, func(a *attempt) (string, error) { return a.fetchContent(ctx) })
	if err != nil {
		return "", err
	}
	name = imagePrefix + digest
	return name, s.AddFile(path, name)
}

// AddFile gives a file that was made in the staging folder its name in the store.
func (s *Store) AddFile(path, name string) error {
	// Not renamed: disks may use a file that is already there as backing file.
	place := s.filePath(name)
	point := crashpoint.Begin("add image", place)
	err := os.Link(path, place)
	point.End()
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	// A disk that uses the image must not be recorded before the image is on disk.
	return atomicfile.SyncFolder(s.filePath(""))
}

// writeFile has fill write a new, read-only file, and remembers content that was unusable.
func (s *Store) writeFile(path string, ref Ref, progress Progress, fill func(*attempt) (string, error)) (result string, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400) //nolint:gosec // in the staging folder
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	a := &attempt{store: s, ref: ref, progress: progress, file: file, out: &room.File{File: file, Disk: s.Room}}
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

// attempt is one attempt to fetch an image. It counts what is written to it, and accepts
// that as far as there is room and the limit allows.
type attempt struct {
	store    *Store
	ref      Ref
	progress Progress
	file     *os.File
	out      *room.File    // the file as it is written
	copy     transfer.Copy // to the attempt itself, by WriteAt

	published       *published // nil unless the source is a name of the catalogue
	version         string     // the server's version of its content, or nothing
	received, total int64      // total is 0 where it is not known
	needs           int64      // free bytes that it needs at least; 0 unless there was no room
	err             error      // local error, returned unchanged
}

// copySource copies the disk that the source stands for.
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

// finishFile checks a file that has all content of a disk, and returns its digest.
func (a *attempt) finishFile() (digest string, err error) {
	if err := a.published.checkSums(); err != nil {
		return "", err
	}
	_, err = a.copy.Finish(a.file, a.ref.Checksum)
	return strings.TrimPrefix(a.copy.Checksum(), digestPrefix), contentErrorOf(err)
}

// checkContent refuses, before any of it is sent, content that was rejected before, or that is
// too large for the whole disk. Whether there is room shows as it is written, since zeroes need none.
func (a *attempt) checkContent(version string, total int64) error {
	a.version, a.total = a.published.versionFor(version), total
	free, err := a.store.Room.Free()
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

// receiveBytes counts bytes that were sent, and hashes them for the checksum of the publisher.
func (a *attempt) receiveBytes(sent []byte) {
	a.countBytes(len(sent))
	a.published.receiveBytes(sent)
}

// countBytes counts bytes that were sent.
func (a *attempt) countBytes(bytes int) {
	a.received += int64(bytes)
	a.progress.Received(int64(bytes))
	a.reportProgress()
}

// WriteAt writes a part of the content that is not a hole, if there is room for it.
func (a *attempt) WriteAt(p []byte, offset int64) (int, error) {
	n, err := a.out.WriteAt(p, offset)
	if err != nil {
		a.err = a.explainWrite("it", err)
		return n, a.err
	}
	return n, nil
}

// explainWrite says what could not be written, and remembers how much room it needs.
func (a *attempt) explainWrite(file string, err error) error {
	if lacks, ok := errors.AsType[*room.LackError](err); ok {
		a.needs = lacks.Needed
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

// checkTotal refuses an image that is larger than the whole disk.
func (a *attempt) checkTotal() error {
	size, err := a.store.Room.Size()
	if err == nil && a.total > size {
		err = fmt.Errorf("it has %d bytes, and there is no room for it: the disk of %s has %d bytes", a.total, a.store.Dir, size)
	}
	return err
}
