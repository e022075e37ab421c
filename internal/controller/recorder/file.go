// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/policy/decisions"
)

const (
	// maxQueued is how many lines wait for the disk. More are dropped.
	maxQueued = 4096
	// maxFileBytes is the size at which a file becomes FILE.1, in place of the one before.
	maxFileBytes = 32 << 20
	// retryPeriod is the time between two tries to open a file after an error.
	retryPeriod = 10 * time.Second
)

// File appends records to a file. A nil File has none.
type File struct {
	path     string
	maxBytes int64
	log      logr.Logger
	clock    clock.WithTicker
	queue    chan any // *decisions.Record or decisions.Update

	// The rest belongs to Start.
	file    *os.File
	bytes   int64
	torn    bool // the last line was cut off
	retryAt time.Time
	failed  bool
	lost    int
}

// NewFile returns a File. Start opens it.
func NewFile(path string, log logr.Logger, c clock.WithTicker) *File {
	return &File{path: path, maxBytes: maxFileBytes, log: log, clock: c, queue: make(chan any, maxQueued)}
}

// addRecord puts a record into the queue of the writer. It never blocks.
func (f *File) addRecord(record *decisions.Record) { f.enqueueLine(record) }

// updateRecord has the facts written that became known later about a record.
func (f *File) updateRecord(e *entry) {
	f.enqueueLine(decisions.Update{Replica: e.record.Replica, Sequence: e.record.Sequence, Later: e.later})
}

func (f *File) enqueueLine(line any) {
	if f == nil {
		return
	}
	select {
	case f.queue <- line:
	default: // the disk is slower than the decisions; a gap in the sequence shows it
	}
}

// NeedLeaderElection returns false, so that the file is open before the first decision and until
// the last.
func (f *File) NeedLeaderElection() bool { return false }

// Start writes until ctx ends, and then what is left. An error of the file is logged; what could
// not be written is lost.
func (f *File) Start(ctx context.Context) error {
	defer f.close()
	for {
		select {
		case line := <-f.queue:
			f.writeLine(line)
			continue
		case <-ctx.Done():
		}
		break
	}
	for {
		select {
		case line := <-f.queue:
			f.writeLine(line)
		default:
			return nil
		}
	}
}

func (f *File) writeLine(line any) {
	if f.file == nil && f.clock.Now().Before(f.retryAt) {
		f.lost++
		return
	}
	if err := f.appendLine(line); err != nil {
		f.reportFailure(err)
		return
	}
	if f.failed {
		f.log.Info("Decisions are written again", "file", f.path, "lost", f.lost)
		f.failed, f.lost = false, 0
	}
}

func (f *File) reportFailure(err error) {
	if !f.failed {
		f.log.Error(err, "Decisions are not written; that disturbs nothing else", "file", f.path)
	}
	f.failed, f.lost, f.retryAt = true, f.lost+1, f.clock.Now().Add(retryPeriod)
	f.close()
}

func (f *File) appendLine(line any) error {
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if f.file != nil && f.bytes+int64(len(text)) > f.maxBytes {
		f.close()
		if err := os.Rename(f.path, f.path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := f.open(); err != nil {
		return err
	}
	if f.torn {
		text = append([]byte{'\n'}, text...)
	}
	n, err := f.file.Write(text)
	f.bytes += int64(n)
	f.torn = err != nil && (n > 0 || f.torn)
	return err
}

// open opens the file if it is not open. Only its owner may read it. Nothing is written but to a
// regular file that this user owns and that has no other name: in a folder where others may
// create files, it could be theirs, or a link to one that must not change.
func (f *File) open() error {
	if f.file != nil {
		return nil
	}
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", f.path)
	case !isOwn(info):
		err = fmt.Errorf("%s belongs to another user, or has another name too", f.path)
	default:
		err = file.Chmod(0o600)
	}
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.bytes = file, info.Size()
	f.torn = f.torn || f.bytes > 0 // the process that wrote it may have been killed
	return nil
}

// isOwn reports whether a file is this user's, by one name.
func isOwn(info fs.FileInfo) bool {
	s, ok := info.Sys().(*syscall.Stat_t)
	return ok && int64(s.Uid) == int64(os.Geteuid()) && s.Nlink == 1
}

func (f *File) close() {
	if f.file != nil {
		_ = f.file.Close() // each write has returned its error
		f.file = nil
	}
}
