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

// logBound is how large a machine's logs get. QEMU writes them and knows no bound, so all
// attendants of the machine check them periodically: one of them may be halted. Nothing
// checks them while no controller runs; the next controller cuts what has grown.
type logBound struct {
	size  int64
	every time.Duration
}

var defaultLogBound = logBound{size: 1 << 20, every: 5 * time.Second}

// putLogAside renames the log of what QEMU printed: to oldLog after a run, and to
// failedLog after a start that failed, so that retries do not replace the log of the
// previous run.
func (h instanceDir) putLogAside(suffix string) error {
	err := os.Rename(h.file(logFile), h.file(logFile+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rotateLog renames the previous log before a run. A start that was interrupted has left
// its own.
func (s *server) rotateLog() error {
	if s.Phase == phaseStarting {
		return s.putLogAside(failedLog)
	}
	return s.putLogAside(oldLog)
}

// lastOutput returns the end of what QEMU printed, in one line of at most so many bytes.
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
	// Read more than will be shown, since some of it is left out.
	end := make([]byte, min(info.Size(), int64(4*most)))
	n, err := f.ReadAt(end, info.Size()-int64(len(end)))
	if err != nil && n == 0 {
		return err.Error()
	}
	return lastOf(string(end[:n]), most)
}

// lastOf returns the end of a text as one line of valid UTF-8 without control characters.
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

// cutLog empties a log that is too large after copying its end aside. The file stays the
// same one, since QEMU has it open and appends to it. What is written between copy and
// cut is lost. The log is emptied even where the copy fails: a full disk is no reason to
// fill it further. Only one of several processes cuts it: the next would replace what was
// put aside by what is left.
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

// putEndAside copies the end of a log of some size. The copy is limited, so that a guest
// which prints faster than that cannot prolong it.
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
