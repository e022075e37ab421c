// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"os"
)

// StandardInput is the file name that means standard input.
const StandardInput = "-"

// mostDataBytes is the largest size of a Secret's data.
const mostDataBytes = 1 << 20

// ReadData reads the file of a path, or in, which is standard input, if the path says so.
func ReadData(in io.Reader, path string) ([]byte, error) {
	if path == StandardInput {
		return readAtMost(in, "standard input", mostDataBytes)
	}
	return ReadLimited(path, mostDataBytes)
}

// ReadLimited reads a file of at most a size.
func ReadLimited(path string, most int64) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return readAtMost(file, path, most)
}

func readAtMost(r io.Reader, name string, most int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case int64(len(content)) > most:
		return nil, fmt.Errorf("%s has more than %d bytes", name, most)
	}
	return content, nil
}
