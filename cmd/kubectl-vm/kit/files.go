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

// maxDataBytes is the largest size of a Secret's data.
const maxDataBytes = 1 << 20

// ReadData reads the data of a Secret from a file, or from in if path is StandardInput.
func ReadData(in io.Reader, path string) ([]byte, error) {
	if path == StandardInput {
		return readAtMost(in, "standard input", maxDataBytes)
	}
	return ReadLimited(path, maxDataBytes)
}

// ReadLimited reads a file of at most limit bytes.
func ReadLimited(path string, limit int64) ([]byte, error) {
	file, err := os.Open(path) //nolint:gosec // the user names the file
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return readAtMost(file, path, limit)
}

func readAtMost(r io.Reader, name string, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", name, err)
	case int64(len(content)) > limit:
		return nil, fmt.Errorf("%s has more than %d bytes", name, limit)
	}
	return content, nil
}
