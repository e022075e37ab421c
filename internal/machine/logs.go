// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unicode"
)

// SetLogAside renames the log of what QEMU printed: to OldLog after a run, and to
// FailedLog after a start that failed, so that retries do not replace the log of the
// previous run.
func (m Machine) SetLogAside(suffix string) error {
	err := os.Rename(m.File(LogFile), m.File(LogFile+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LastOutput returns the end of what QEMU printed, in one line of at most so many bytes.
// What the guest printed is in another file.
func (m Machine) LastOutput(most int) string {
	f, err := os.Open(m.File(LogFile))
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
	return lastLine(string(end[:n]), most)
}

// lastLine returns the end of a text as one line of valid UTF-8 without control characters.
func lastLine(text string, most int) string {
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(text, "")) {
		line = strings.TrimSpace(strings.Map(keepPrintable, line))
		if line != "" {
			lines = append(lines, line)
		}
	}
	line := strings.Join(lines, "; ")
	return strings.ToValidUTF8(line[max(0, len(line)-most):], "")
}

func keepPrintable(r rune) rune {
	switch {
	case r == '\t':
		return ' '
	case unicode.IsPrint(r):
		return r
	}
	return -1
}

// LogFiles are the logs of a machine that QEMU writes without bound.
var LogFiles = []string{SerialLogFile, LogFile}

// CutLog empties a log that is too large after copying its end aside. The file stays the
// same one, since QEMU has it open and appends to it. What is written between copy and
// cut is lost. The log is emptied even where the copy fails: a full disk is no reason to
// fill it further. Only one of several processes cuts it: the next would replace what was
// put aside by what is left.
func (m Machine) CutLog(name string, keep int64) error {
	unlock, err := tryLock(m.File(name), 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EWOULDBLOCK) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	log, err := os.OpenFile(m.File(name), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	info, err := log.Stat()
	if err != nil || info.Size() <= keep {
		return err
	}
	return errors.Join(m.copyLogEnd(log, info.Size(), keep), log.Truncate(0))
}

// copyLogEnd copies the end of a log of some size. The copy is limited, so that a guest
// which prints faster than that cannot prolong it.
func (m Machine) copyLogEnd(log *os.File, size, keep int64) error {
	tmp, remove, err := m.Staging.Temp()
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
	return os.Rename(aside.Name(), log.Name()+OldLog)
}
