// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/moby/moby/api/pkg/stdcopy"
)

// frames reads the output of a container or command, which the engine sends in frames: one byte for the stream, three
// unused ones, four for the size, and the output. See "Stream format" of ContainerAttach in the API of Docker Engine.
type frames struct {
	body *bufio.Reader
	// isRaw is true for a terminal, whose output is not in frames.
	isRaw  bool
	stream stdcopy.StdType // of the current frame
	left   int64           // bytes of the current frame that were not read yet
}

func newFrames(body io.Reader, isRaw bool) *frames {
	return &frames{body: bufio.NewReader(body), isRaw: isRaw}
}

// ReadStream implements terminal.SplitReader.
func (f *frames) ReadStream(p []byte) (n int, isStderr bool, err error) {
	if f.isRaw {
		n, err = f.body.Read(p)
		return n, false, err
	}
	for f.left == 0 {
		if err := f.readHeader(); err != nil {
			return 0, false, err
		}
	}
	n, err = f.body.Read(p[:min(int64(len(p)), f.left)])
	if f.left -= int64(n); errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, f.stream == stdcopy.Stderr, err
}

// readHeader reads the header of the next frame.
func (f *frames) readHeader() error {
	var header [8]byte
	if _, err := io.ReadFull(f.body, header[:]); err != nil {
		return err
	}
	f.stream, f.left = stdcopy.StdType(header[0]), int64(binary.BigEndian.Uint32(header[4:]))
	switch f.stream {
	case stdcopy.Stdin, stdcopy.Stdout, stdcopy.Stderr:
		return nil
	case stdcopy.Systemerr:
		text, _ := io.ReadAll(io.LimitReader(f.body, min(f.left, maxEngineError)))
		return fmt.Errorf("the engine reports %q", text)
	}
	return fmt.Errorf("the engine has sent a frame of stream %d, which does not exist", f.stream)
}

// maxEngineError is how many bytes of an engine's error text are shown.
const maxEngineError = 1 << 10
