// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"
	"unicode"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/output"
	"cloudnative.tw/drover/internal/machine/proc"
)

// SetLogAside renames the log of QEMU's output: to OldLog after a run, and to
// FailedLog after a start that failed, so that retries do not replace the log of the
// previous run.
func (m Machine) SetLogAside(suffix string) error {
	err := os.Rename(m.File(LogFile), m.File(LogFile+suffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// LastOutput returns the end of QEMU's output, in one line of at most so many bytes.
// The output of the guest is in another file.
func (m Machine) LastOutput(most int) string {
	f, info, err := atomicfile.Open(m.File(LogFile))
	if err != nil {
		return err.Error()
	}
	defer func() { _ = f.Close() }()
	return lastOf(f, info.Size(), most)
}

// LastLine returns the end of a log in one line of at most so many bytes.
func LastLine(log *os.File, most int) string {
	info, err := log.Stat()
	if err != nil {
		return err.Error()
	}
	return lastOf(log, info.Size(), most)
}

func lastOf(log io.ReaderAt, size int64, most int) string {
	// Read more than will be shown, since some of it is left out.
	end := make([]byte, min(size, int64(4*most)))
	n, err := log.ReadAt(end, size-int64(len(end)))
	if err != nil && n == 0 {
		return err.Error()
	}
	return Printable(string(end[:n]), most)
}

// Printable returns the end of a text as one line of valid UTF-8 without control characters, of at most so many
// bytes.
func Printable(text string, most int) string {
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

// CutLog empties a log that is larger than most bytes, after copying its end aside. The file stays the same one, since
// QEMU has it open and appends to it. What is written between copy and cut is lost. The log is emptied even where the
// copy fails: a disk that is full must not be filled further.
func CutLog(log, aside *os.File, most int64) error {
	info, err := log.Stat()
	if err != nil || info.Size() <= most {
		return err
	}
	if err = aside.Truncate(0); err == nil { // limited, so that a guest which prints faster cannot prolong it
		_, err = io.Copy(io.NewOffsetWriter(aside, 0), io.NewSectionReader(log, max(0, info.Size()-most), 2*most))
	}
	return errors.Join(err, log.Truncate(0))
}

// LogOptions select a part of the guest's output on its serial console.
type LogOptions struct {
	// Follow waits for more at the end, until the machine has stopped.
	Follow bool
	// Previous selects what was cut off the log last.
	Previous bool
	// TailLines is how many lines from the end to read; nil means all.
	TailLines *int64
}

// followEvery is the interval between two reads of a log that is followed.
const followEvery = 100 * time.Millisecond

// OpenLog opens what the guest printed, whether the machine runs or not. Reading ends with ctx.
func (m Machine) OpenLog(ctx context.Context, o LogOptions) (io.ReadCloser, error) {
	name, none := SerialLogFile, "the guest has printed nothing yet"
	if o.Previous {
		name, none = SerialLogFile+OldLog, "nothing was cut off the log of the guest yet"
	}
	file, info, err := atomicfile.Open(m.File(name))
	if err == nil && o.Previous && info.Size() == 0 { // made beforehand, for the supervisor
		err = errors.Join(fs.ErrNotExist, file.Close())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errorf(ErrNoLog, "%s", none)
	}
	if err != nil {
		return nil, err
	}
	begin, end, err := o.findPart(file)
	switch {
	case err != nil:
		return nil, errors.Join(err, file.Close())
	case o.Follow && !o.Previous:
		return &followedLog{ctx, growingLog{m.IsRunning, file, begin}}, nil
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(file, begin, end-begin), file}, nil
}

// findPart returns the part of a log that is there and was selected.
func (o LogOptions) findPart(log *os.File) (begin, end int64, err error) {
	info, err := log.Stat()
	if err != nil {
		return 0, 0, err
	}
	if o.TailLines == nil {
		return 0, info.Size(), nil
	}
	begin, err = output.FindTail(log, 0, info.Size(), *o.TailLines)
	return begin, info.Size(), err
}

// followedLog waits for further output.
type followedLog struct {
	ctx context.Context
	log growingLog
}

// Read implements io.Reader.
func (l *followedLog) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if n, err := l.log.readGrowing(p); n > 0 || err != nil {
			return n, err
		}
		if !proc.Pause(l.ctx, followEvery) {
			return 0, context.Cause(l.ctx)
		}
	}
	return 0, nil
}

// Close implements io.Closer.
func (l *followedLog) Close() error { return l.log.file.Close() }

// growingLog reads the serial log of a machine, which grows and is cut.
type growingLog struct {
	isRunning func() (bool, error)
	file      *os.File
	at        int64
}

// readGrowing reads what is there, without waiting. It returns io.EOF at the end of the log of a
// machine that does not run. It checks that first, so that it does not miss the last output.
func (l *growingLog) readGrowing(p []byte) (int, error) {
	on, err := l.isRunning()
	if err != nil {
		return 0, err
	}
	n, err := l.file.ReadAt(p, l.at)
	l.at += int64(n)
	if n > 0 {
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return 0, err
	}
	info, err := l.file.Stat()
	switch {
	case err != nil:
		return 0, err
	case info.Size() < l.at: // it was cut
		l.at = 0
	case !on:
		return 0, io.EOF
	}
	return 0, nil
}
