// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"cloudnative.tw/drover/internal/image/erofs"
)

// Open opens a layer by its place in the request. Reading it returns an error at
// its end if its digest is not the expected one.
type Open func(number int) (io.ReadCloser, error)

// ErrStopped means that the other side has stopped reading. Its result says why.
var ErrStopped = errors.New("the conversion has stopped")

// ConverterError means that the converter itself has failed, for example by a signal.
type ConverterError struct{ Err error }

// Error implements error.
func (e *ConverterError) Error() string { return "the conversion has failed: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ConverterError) Unwrap() error { return e.Err }

// ConvertHere converts an image in this process, for tests: see package converter. It fails if
// a layer cannot be read, or the output cannot be written.
func ConvertHere(_ context.Context, request Request, open Open, out erofs.File) (Result, error) {
	from, to := io.Pipe()
	written, writing := io.Pipe()
	sent, received := make(chan error, 1), make(chan error, 1)
	go func() {
		err := Send(to, request, open)
		_ = to.CloseWithError(err)
		sent <- err
	}()
	go func() {
		err := Receive(written, out, request.MaxSize)
		_ = written.CloseWithError(err)
		received <- err
	}()
	result := Convert(from, SentOutput{writing})
	_, _ = from.Close(), writing.Close()
	err := <-sent
	if errors.Is(err, ErrStopped) {
		err = nil
	}
	if failed := <-received; failed != nil {
		return Result{}, failed
	}
	return result, err
}

// Send writes a request and its layers as Convert reads them. A layer that has another size
// than the request says is an error.
func Send(writer io.Writer, request Request, open Open) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if len(text) > maxRequest {
		return fmt.Errorf("the request has %d bytes: at most %d are possible", len(text), maxRequest)
	}
	s := &sink{to: writer}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(text))) //nolint:gosec // as maxRequest says
	if _, err := s.Write(append(head, text...)); err != nil {
		return err
	}
	for number, size := range request.Layers {
		if err := sendLayer(s, size, number, open); err != nil {
			return err
		}
	}
	return nil
}

// sendLayer sends a layer. If the conversion stops before its end, the rest is still read, since a
// wrong digest, which may be the cause, shows at the end only.
func sendLayer(writer *sink, size int64, number int, open Open) error {
	blob, err := open(number)
	if err != nil {
		return err
	}
	defer func() { _ = blob.Close() }()
	limited := &io.LimitedReader{R: blob, N: size + 1}
	_, err = io.Copy(writer, limited)
	if writer.hasStopped {
		_, err = io.Copy(io.Discard, limited)
	}
	if n := size + 1 - limited.N; err == nil && n != size {
		return fmt.Errorf("layer %d has %d bytes, and %d were announced", number+1, n, size)
	}
	if err == nil && writer.hasStopped {
		err = ErrStopped
	}
	return err
}

// sink remembers that writing has failed.
type sink struct {
	to         io.Writer
	hasStopped bool
}

// Write implements io.Writer.
func (s *sink) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	if err != nil {
		s.hasStopped = true
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return n, err
}
