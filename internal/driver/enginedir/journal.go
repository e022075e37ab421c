// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package enginedir

import (
	"encoding/json"
	"fmt"
	"os"

	"cloudnative.tw/drover/internal/driver"
)

// Journal is a file of one JSON document a line, that several controllers share.
type Journal struct {
	name string
	file *os.File
}

// OpenJournal makes the file where it is missing. The name, such as "the qemu
// driver's journal", is for errors.
func OpenJournal(name, path string) (*Journal, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600) //nolint:gosec // The path is a flag.
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Journal{name, f}, nil
}

// Write adds one line by one write, so that those of several processes do not
// mix. What cannot be written down is not to be done: it is ErrRetry.
func (j *Journal) Write(entry any) error {
	line, err := json.Marshal(entry)
	if j.endsMidway() {
		line = append([]byte{'\n'}, line...)
	}
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return driver.Errorf(driver.ErrRetry, "%s: %w", j.name, err)
	}
	return nil
}

// endsMidway tells whether the last line is cut off, by whoever met a disk that was
// full. One that another process is about to end may look so too, which leaves an
// empty line.
func (j *Journal) endsMidway() bool {
	info, err := j.file.Stat()
	if err != nil || info.Size() == 0 {
		return false
	}
	last := make([]byte, 1)
	_, err = j.file.ReadAt(last, info.Size()-1)
	return err == nil && last[0] != '\n'
}

// Close closes the file; nothing can be written after.
func (j *Journal) Close() error { return j.file.Close() }
