// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// logBound is how large a machine's logs get. QEMU writes them and knows no
// bound, so whoever attends the machine looks at them now and then. While no
// controller runs nobody does; the first that comes cuts what has grown.
type logBound struct {
	size  int64
	every time.Duration
}

var defaultLogBound = logBound{size: 1 << 20, every: 5 * time.Second}

// cutLogs cuts a machine's logs that are too large.
func (d *Driver) cutLogs(h home) {
	for _, name := range []string{serialLogFile, logFile} {
		info, err := os.Stat(h.file(name))
		if err != nil || info.Size() <= d.logs.size {
			continue
		}
		if err := h.cutLog(name, d.logs.size); err != nil {
			d.Log.V(1).Info("Log could not be kept while it was cut", "log", h.file(name), "cause", err.Error())
		}
	}
}

// cutLog empties a log after it has put the end of it aside. The file stays the
// same one, since QEMU has it open and appends to it. What comes between copy and
// cut is lost. It is emptied even where the copy fails: a full disk is not a
// reason to fill it.
func (h home) cutLog(name string, keep int64) error {
	log, err := os.OpenFile(h.file(name), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	return errors.Join(h.putEndAside(log, keep), log.Truncate(0))
}

// putEndAside copies the end of a log. A guest that prints faster than can be
// copied must not keep it going.
func (h home) putEndAside(log *os.File, keep int64) error {
	info, err := log.Stat()
	if err != nil {
		return err
	}
	tmp, remove, err := h.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	aside, err := os.OpenFile(filepath.Join(tmp, "log"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // in the engine's folder
	if err != nil {
		return err
	}
	_, err = io.Copy(aside, io.NewSectionReader(log, max(0, info.Size()-keep), 2*keep))
	if err := errors.Join(err, aside.Close()); err != nil {
		return err
	}
	return os.Rename(aside.Name(), log.Name()+oldLog)
}
