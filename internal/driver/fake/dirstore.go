// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// Names in the folder.
const (
	retainedDir = "retained"
	fileSuffix  = ".json"
)

// maxFileSize bounds what is read into memory, since the folder may have other large files.
const maxFileSize = 1 << 20

// dirStore keeps each record in a file of a folder. A process holds the lock file of a
// record while it changes the record, and creates a record by linking a complete file into
// place. So a file is never incomplete, and a UID never has two servers.
type dirStore struct {
	dir     *statedir.Dir
	watches kit.Watches

	mu    sync.Mutex
	known map[string]bool // file names that listNames has returned
}

func openDirStore(path string) (*dirStore, error) {
	dir, err := statedir.Open("the fake driver's folder", path, retainedDir)
	if err != nil {
		return nil, err
	}
	dir.Volatile = true // simulated servers need not survive a power cut
	s := &dirStore{dir: dir, known: map[string]bool{}}
	for _, folder := range []string{dir.Path(), dir.Path(retainedDir)} {
		if err := s.removeEmptyRecords(folder); err != nil {
			return nil, fmt.Errorf("the fake driver's folder: %w", err)
		}
	}
	return s, nil
}

// removeEmptyRecords removes the files of records that have lost their content in a power cut,
// since no process writes an empty file. A single empty file would make the engine unavailable.
func (s *dirStore) removeEmptyRecords(folder string) error {
	paths, err := filepath.Glob(filepath.Join(folder, "*"+fileSuffix))
	if err != nil {
		return err
	}
	for _, path := range paths {
		uid, _, ok := uidOf(filepath.Base(path))
		if !ok || !isEmpty(path) {
			continue
		}
		if err := s.removeIfEmpty(uid, path); err != nil && !errors.Is(err, driver.ErrRetry) {
			return err
		}
	}
	return nil
}

// removeIfEmpty removes an empty file. It fails with ErrRetry if another process holds the
// record's lock: that process may be removing the file too, or replacing it.
func (s *dirStore) removeIfEmpty(uid types.UID, path string) error {
	lock, err := s.dir.Lock(uid)
	if err != nil {
		return err
	}
	defer lock.Remove()
	if !isEmpty(path) {
		return nil
	}
	return os.Remove(path)
}

func isEmpty(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.Mode().IsRegular() && info.Size() == 0
}

func (s *dirStore) engineID() (string, error) { return s.dir.ID() }

// checkReachable checks that the folder exists and is still the same engine. Otherwise it
// closes all watches, so that their callers open new ones and list again.
func (s *dirStore) checkReachable() error {
	err := s.dir.Reach()
	if err != nil {
		s.watches.ShutDown()
	}
	return err
}

func (s *dirStore) getRecord(uid types.UID) (*Record, error) {
	if err := s.checkReachable(); err != nil {
		return nil, err
	}
	r, _, err := s.readRecord(s.dir.Path(string(uid)+fileSuffix), uid)
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	if r != nil && r.Retained {
		return nil, nil //nolint:nilnil // Nil is the answer for no record.
	}
	return r, nil
}

// readRecord returns the record in a file, or nil if the file does not exist. It also returns
// the file's metadata, by which replaceFile detects a change of the file.
func (s *dirStore) readRecord(path string, uid types.UID) (*Record, fs.FileInfo, error) {
	content, info, err := atomicfile.Read(path, maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("reading a fake server: %w", err)
	}
	r, err := decodeRecord(content)
	if err == nil {
		changed := info.ModTime()
		err = r.completeFields(uid, changed, "hand-"+strconv.FormatInt(changed.UnixNano(), 36))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("repair or remove %s: %w", path, err)
	}
	return &r, info, nil
}

func (s *dirStore) listRecords(ctx context.Context, uids ...types.UID) ([]Record, error) {
	if len(uids) > 0 {
		return s.listByUID(ctx, uids)
	}
	if err := s.checkReachable(); err != nil {
		return nil, err
	}
	names, err := s.listNames()
	if err != nil {
		return nil, err
	}
	type identity struct {
		uid types.UID
		id  string
	}
	indexes := map[identity]int{}
	var all []Record
	for _, name := range names {
		r, err := s.readRecordByName(ctx, name)
		if err != nil {
			return nil, err
		}
		if r == nil {
			continue
		}
		// A server that is released during this call is read twice: the released record counts.
		key := identity{r.UID, r.ID}
		if i, found := indexes[key]; found && r.Retained {
			all[i] = *r
			continue
		}
		indexes[key] = len(all)
		all = append(all, *r)
	}
	// The folder may have been removed during this call.
	return all, s.checkReachable()
}

func (s *dirStore) listByUID(ctx context.Context, uids []types.UID) ([]Record, error) {
	records := make([]Record, 0, len(uids))
	for _, uid := range uids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := s.getRecord(uid)
		if err != nil {
			return nil, err
		}
		if r != nil {
			records = append(records, *r)
		}
	}
	return records, nil
}

// readRecordByName reads a record by the file's name relative to the folder.
func (s *dirStore) readRecordByName(ctx context.Context, name string) (*Record, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	uid, _, _ := uidOf(filepath.Base(name))
	r, _, err := s.readRecord(s.dir.Path(name), uid)
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	if r != nil && filepath.Dir(name) == retainedDir {
		r.Retained = true
	}
	return r, nil
}

// listNames returns the names of all servers' files. It reads the folder of released
// servers last, so that a server that is being released is found in at least one folder.
//
// On some file systems, reading a folder may skip a file that is being replaced. So the
// folder is read twice, and a name that an earlier call found is kept until its file is
// gone.
func (s *dirStore) listNames() ([]string, error) {
	found := map[string]bool{}
	for range 2 {
		if err := s.scanFolder("", found); err != nil {
			return nil, err
		}
	}
	s.addKnownNames(found)
	var names []string
	for name := range found {
		names = append(names, name)
	}
	released := map[string]bool{}
	if err := s.scanFolder(retainedDir, released); err != nil {
		return nil, err
	}
	for name := range released {
		names = append(names, name)
	}
	return names, nil
}

func (s *dirStore) scanFolder(sub string, found map[string]bool) error {
	entries, err := os.ReadDir(s.dir.Path(sub))
	if sub == retainedDir && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return driver.Errorf(driver.ErrUnavailable, "the fake driver's folder: %w", err)
	}
	for _, entry := range entries {
		if _, released, ok := uidOf(entry.Name()); ok && released == (sub == retainedDir) {
			found[filepath.Join(sub, entry.Name())] = true
		}
	}
	return nil
}

// addKnownNames adds to found the names that earlier lists returned and whose files
// still exist.
func (s *dirStore) addKnownNames(found map[string]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.known {
		if found[name] {
			continue
		}
		if _, err := os.Lstat(s.dir.Path(name)); err == nil {
			found[name] = true
		}
	}
	s.known = map[string]bool{}
	for name := range found {
		s.known[name] = true
	}
}

// uidOf returns the UID in a file's name: <uid>.json, or <uid>.<id>.json for a
// released server. ok is false for other files, such as the backups of an editor.
func uidOf(base string) (uid types.UID, released, ok bool) {
	stem, isJSON := strings.CutSuffix(base, fileSuffix)
	stem, _, released = strings.Cut(stem, ".")
	return types.UID(stem), released, isJSON && driver.CheckUID(types.UID(stem)) == nil
}

func (s *dirStore) changeRecord(uid types.UID, leader leaderEpoch, edit func(*Record) (*Record, error)) error {
	if err := s.checkReachable(); err != nil {
		return err
	}
	lock, err := s.dir.Lock(uid)
	if err != nil {
		return s.classifyError(err)
	}
	defer lock.Release()
	if err := s.dir.Admit(leader.clusterID, leader.epoch); err != nil {
		return s.classifyError(err)
	}
	old, stamp, err := s.readForChange(uid)
	if err != nil {
		return s.classifyError(err)
	}
	next, err := edit(cloneRecord(old))
	if err != nil || reflect.DeepEqual(old, next) {
		return err
	}
	return s.classifyError(s.writeRecord(uid, stamp, next))
}

func cloneRecord(r *Record) *Record {
	if r == nil {
		return nil
	}
	c := *r
	return &c
}

// readForChange reads the record of a UID. If a crash or a person has left a released record
// there, it finishes the release and returns nil.
func (s *dirStore) readForChange(uid types.UID) (*Record, fs.FileInfo, error) {
	r, stamp, err := s.readRecord(s.dir.Path(string(uid)+fileSuffix), uid)
	if err != nil || r == nil || !r.Retained {
		return r, stamp, err
	}
	return nil, nil, s.moveToRetained(r)
}

// classifyError returns ErrUnavailable for a lost folder, otherwise the error of the change.
func (s *dirStore) classifyError(err error) error {
	if err == nil {
		return nil
	}
	if lost := s.checkReachable(); lost != nil {
		return lost
	}
	return s.dir.Explain(err)
}

// writeRecord stores a record, or removes its file if next is nil. stamp is the metadata of the
// file that the change is based on, nil if the file did not exist.
func (s *dirStore) writeRecord(uid types.UID, stamp fs.FileInfo, next *Record) error {
	path := s.dir.Path(string(uid) + fileSuffix)
	if next == nil {
		point := crashpoint.Begin("remove", path)
		err := os.Remove(path)
		point.End()
		return err
	}
	content, err := encodeRecord(*next)
	if err != nil {
		return err
	}
	if stamp == nil {
		return s.dir.Create(path, content)
	}
	if err := s.replaceFile(path, stamp, content); err != nil {
		return err
	}
	if next.Retained {
		return s.moveToRetained(next)
	}
	return nil
}

// moveToRetained moves the file of a released server, so that its UID is free.
func (s *dirStore) moveToRetained(r *Record) error {
	path := s.dir.Path(retainedDir, string(r.UID)+"."+r.ID+fileSuffix)
	point := crashpoint.Begin("move", path)
	err := os.Rename(s.dir.Path(string(r.UID)+fileSuffix), path)
	point.End()
	return err
}

// replaceFile replaces a file if it has not changed since stamp was taken.
func (s *dirStore) replaceFile(path string, stamp fs.FileInfo, content []byte) error {
	return s.dir.ReplaceIf(path, content, func() error {
		now, err := os.Stat(path)
		if err != nil {
			return err
		}
		if !os.SameFile(now, stamp) || !now.ModTime().Equal(stamp.ModTime()) || now.Size() != stamp.Size() {
			return fmt.Errorf("%s was edited during this change", path)
		}
		return nil
	})
}

func (s *dirStore) watchRecords(ctx context.Context) (*kit.Queue, error) {
	w, err := s.dir.Notify(retainedDir)
	if err != nil {
		return nil, err
	}
	queue := s.watches.Open(ctx)
	context.AfterFunc(ctx, func() { _ = w.Close() })
	go s.forwardEvents(w, queue)
	return queue, nil
}

// forwardEvents queues the UIDs of changed files until w is closed. An error means that
// events were lost, and ends forwardEvents too.
func (s *dirStore) forwardEvents(w *fsnotify.Watcher, queue *kit.Queue) {
	defer queue.ShutDown()
	for {
		select {
		case event, open := <-w.Events:
			if !open || s.dir.IsEnd(event) {
				return
			}
			if uid, _, ok := uidOf(filepath.Base(event.Name)); ok && event.Op != fsnotify.Chmod {
				queue.Add(uid)
			}
		case err := <-w.Errors:
			_ = err // After any error the caller of Watch has to list again.
			return
		}
	}
}
