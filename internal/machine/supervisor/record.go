// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine"
)

// RecordSize is the size of a record of an end. The record is allocated before the run, in case the disk is
// full at the end. Until then it has only zeros.
const RecordSize = 4 << 10

// maxText and maxOutput bound the recorded message and output, in bytes. JSON may need twice as many.
const maxText, maxOutput = 512, lastOutput

// ErrDamaged means that the record of an end is unreadable, such as after a power cut.
var ErrDamaged = errors.New("the record of the end is damaged")

// MakeRecord makes a record without an end.
func MakeRecord(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600) //nolint:gosec // a path of the caller
	if err != nil {
		return nil, err
	}
	_, err = f.Write(make([]byte, RecordSize))
	if err = errors.Join(err, unix.Fdatasync(int(f.Fd()))); err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(path))
	}
	return f, nil
}

// writeEnd records an end in one write, and returns once it is on the disk. It keeps an end that was recorded before.
func writeEnd(f *os.File, e End) error {
	if first, err := ReadEnd(io.NewSectionReader(f, 0, RecordSize)); first != nil || errors.Is(err, ErrDamaged) {
		return nil
	}
	e.Message, e.Output = machine.Printable(e.Message, maxText), machine.Printable(e.Output, maxOutput)
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(e); err != nil {
		return err
	}
	sum := sha256.Sum256(bytes.TrimSuffix(text.Bytes(), []byte("\n")))
	if _, err := f.WriteAt(fmt.Appendf(nil, "%x %s", sum, text.Bytes()), 0); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

// ReadEnd reads a recorded end, nil if there is none. The caller must not trust it, since the supervisor wrote it.
func ReadEnd(reader io.Reader) (*End, error) {
	content, err := io.ReadAll(io.LimitReader(reader, RecordSize))
	if err != nil {
		return nil, err
	}
	content = bytes.TrimRight(content, "\x00")
	if len(content) == 0 {
		return nil, nil //nolint:nilnil // No end is recorded.
	}
	sum, text, _ := bytes.Cut(bytes.TrimSuffix(content, []byte("\n")), []byte(" "))
	expected := sha256.Sum256(text)
	var e End
	if string(sum) != hex.EncodeToString(expected[:]) || json.Unmarshal(text, &e) != nil {
		return nil, ErrDamaged
	}
	return &e, nil
}
