// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"cloudnative.tw/drover/internal/driver/statedir"
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

// putLogAside gives what QEMU printed another name: oldLog after a run, and failedLog
// after a start that failed, so that retries do not push out what the run before left.
func (h instanceDir) putLogAside(suffix string) error {
	err := os.Rename(h.file(logFile), h.file(logFile+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rotateLog makes way for the log of a run. A start that was cut off has left its own.
func (s *server) rotateLog() error {
	if s.Phase == phaseStarting {
		return s.putLogAside(failedLog)
	}
	return s.putLogAside(oldLog)
}

// lastOutput is the end of what QEMU printed, in one line of at most so many bytes.
// What the guest printed is in another file.
func (h instanceDir) lastOutput(most int) string {
	f, err := os.Open(h.file(logFile))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err.Error()
	}
	// More than will be shown, for what is left out of it.
	end := make([]byte, min(info.Size(), int64(4*most)))
	n, err := f.ReadAt(end, info.Size()-int64(len(end)))
	if err != nil && n == 0 {
		return err.Error()
	}
	return lastOf(string(end[:n]), most)
}

// lastOf is the end of a text as one line of valid UTF-8 without control characters.
func lastOf(text string, most int) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(text, "")) {
		line = strings.TrimSpace(strings.Map(printable, line))
		if line != "" {
			lines = append(lines, line)
		}
	}
	line := strings.Join(lines, "; ")
	return strings.ToValidUTF8(line[max(0, len(line)-most):], "")
}

func printable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case unicode.IsPrint(r):
		return r
	}
	return -1
}

// cutLogs cuts a machine's logs that are too large.
func (d *Driver) cutLogs(h instanceDir) {
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
func (h instanceDir) cutLog(name string, keep int64) error {
	lock, err := statedir.TryLockExisting(h.file(name), syscall.LOCK_EX)
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
func (h instanceDir) putEndAside(log *os.File, size, keep int64) error {
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
