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
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600) //nolint:gosec // The path is a flag.
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return &Journal{name, f}, nil
}

// Write adds one line by one write, so that those of several processes do not
// mix. What cannot be written down is not to be done: it is ErrRetry.
func (j *Journal) Write(entry any) error {
	line, err := json.Marshal(entry)
	if err == nil {
		_, err = j.file.Write(append(line, '\n'))
	}
	if err != nil {
		return driver.Errorf(driver.ErrRetry, "%s: %w", j.name, err)
	}
	return nil
}

// Close closes the file; nothing can be written after.
func (j *Journal) Close() error { return j.file.Close() }
