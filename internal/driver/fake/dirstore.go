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

// maxFileSize prevents a file that was put there by mistake from being read into memory.
const maxFileSize = 1 << 20

// dirStore keeps the records in a folder, one file each. A process changes a record
// under its lock file, and creates one by linking it into place. So there is never
// an incomplete file and never a second server of a UID.
type dirStore struct {
	dir     *statedir.Dir
	watches kit.Watches

	mu    sync.Mutex
	known map[string]bool // names that a list has returned
}

func openDirStore(path string) (*dirStore, error) {
	dir, err := statedir.Open("the fake driver's folder", path, retainedDir)
	if err != nil {
		return nil, err
	}
	dir.Volatile = true // simulated servers need not survive a power cut
	s := &dirStore{dir: dir, known: map[string]bool{}}
	for _, folder := range []string{dir.Path(), dir.Path(retainedDir)} {
		if err := s.removeEmpty(folder); err != nil {
			return nil, fmt.Errorf("the fake driver's folder: %w", err)
		}
	}
	return s, nil
}

// removeEmpty removes records that have lost their content in a power cut. One such file
// would make the engine unavailable. No process writes an empty record.
func (s *dirStore) removeEmpty(folder string) error {
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

// removeIfEmpty removes an empty record unless another process has its lock, which may just
// have removed it too, and make a new one.
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

// checkReachable checks that the folder is present and still the same engine. If not,
// it closes all watches, because their callers have to open new ones.
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

// readRecord returns the record in a file, nil if there is none, and the file's
// metadata, by which a later change of the file is detected.
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
	places := map[identity]int{}
	var all []Record
	for _, name := range names {
		r, err := s.readRecordByName(ctx, name)
		if err != nil {
			return nil, err
		}
		if r == nil {
			continue
		}
		// A server that was released while this list ran appears twice.
		key := identity{r.UID, r.ID}
		if i, found := places[key]; found && r.Retained {
			all[i] = *r
			continue
		}
		places[key] = len(all)
		all = append(all, *r)
	}
	// The folder may have been removed while it was read.
	return all, s.checkReachable()
}

func (s *dirStore) listByUID(ctx context.Context, uids []types.UID) ([]Record, error) {
	some := make([]Record, 0, len(uids))
	for _, uid := range uids {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		r, err := s.getRecord(uid)
		if err != nil {
			return nil, err
		}
		if r != nil {
			some = append(some, *r)
		}
	}
	return some, nil
}

// readRecordByName reads a file by its name under the folder.
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

// listNames returns the names of all servers' files, the released ones last, so
// that a server that is being released is found in at least one place.
//
// A file that is replaced while a folder is read may be skipped on some file
// systems. So the folder is read twice, and a name once seen is kept until its
// file is found to be gone.
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
// released server. Backups, swap files and the like belong to no server.
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

// readForChange also finishes a release that a crash, or a person, left
// unfinished.
func (s *dirStore) readForChange(uid types.UID) (*Record, fs.FileInfo, error) {
	r, stamp, err := s.readRecord(s.dir.Path(string(uid)+fileSuffix), uid)
	if err != nil || r == nil || !r.Retained {
		return r, stamp, err
	}
	return nil, nil, s.moveToRetained(r)
}

// classifyError distinguishes a lost folder from a failure of this change only.
func (s *dirStore) classifyError(err error) error {
	if err == nil {
		return nil
	}
	if lost := s.checkReachable(); lost != nil {
		return lost
	}
	return s.dir.Explain(err)
}

// writeRecord stores a record whose file was as described by stamp (nil: did not exist).
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

// moveToRetained frees the UID of a server that is marked as released.
func (s *dirStore) moveToRetained(r *Record) error {
	to := s.dir.Path(retainedDir, string(r.UID)+"."+r.ID+fileSuffix)
	point := crashpoint.Begin("move", to)
	err := os.Rename(s.dir.Path(string(r.UID)+fileSuffix), to)
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
			_ = err // Whatever it is, the caller of Watch has to list again.
			return
		}
	}
}
