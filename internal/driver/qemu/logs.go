// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/driver/enginedir"
)

// logBound is how large a machine's logs get. QEMU writes them and knows no
// bound, so all who attend the machine look at them now and then: one of them may
// have been halted. While no controller runs nobody does; the first that comes cuts
// what has grown.
type logBound struct {
	size  int64
	every time.Duration
}

var defaultLogBound = logBound{size: 1 << 20, every: 5 * time.Second}

// cutLogs cuts a machine's logs that are too large.
func (d *Driver) cutLogs(h home) {
	for _, name := range []string{serialLogFile, logFile} {
		if err := h.cutLog(name, d.logs.size); err != nil {
			d.Log.V(1).Info("Log could not be kept while it was cut", "log", h.file(name), "cause", err.Error())
		}
	}
}

// cutLog empties a log that is too large after it has put the end of it aside. The
// file stays the same one, since QEMU has it open and appends to it. What comes between copy and
// cut is lost. It is emptied even where the copy fails: a full disk is not a
// reason to fill it. Of several who want to cut it one does: what the next would put
// aside is what is left, in the place of what was.
func (h home) cutLog(name string, keep int64) error {
	lock, err := enginedir.TryLockExisting(h.file(name), syscall.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Release()
	log, err := os.OpenFile(h.file(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	info, err := log.Stat()
	if err != nil || info.Size() <= keep {
		return err
	}
	return errors.Join(h.putEndAside(log, info.Size(), keep), log.Truncate(0))
}

// putEndAside copies the end of a log of some size. A guest that prints faster than
// can be copied must not keep it going.
func (h home) putEndAside(log *os.File, size, keep int64) error {
	tmp, remove, err := h.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	aside, err := os.OpenFile(filepath.Join(tmp, "log"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // in the engine's folder
	if err != nil {
		return err
	}
	_, err = io.Copy(aside, io.NewSectionReader(log, max(0, size-keep), 2*keep))
	if err := errors.Join(err, aside.Close()); err != nil {
		return err
	}
	return os.Rename(aside.Name(), log.Name()+oldLog)
}
