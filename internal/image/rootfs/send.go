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

// Open opens a layer by its index in Request.Layers. If the digest of the layer is wrong,
// reading fails at the end.
type Open func(number int) (io.ReadCloser, error)

// ErrStopped means that Convert has stopped reading. Its result says why.
var ErrStopped = errors.New("the conversion has stopped")

// ConverterError means that the converter itself has failed, for example by a signal.
type ConverterError struct{ Err error }

// Error implements error.
func (e *ConverterError) Error() string { return "the conversion has failed: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *ConverterError) Unwrap() error { return e.Err }

// ConvertHere converts an image in this process, for tests: otherwise use package converter. It
// fails if a layer cannot be read, or the output cannot be written.
func ConvertHere(_ context.Context, request Request, open Open, out erofs.File) (Result, error) {
	layersReader, layersWriter := io.Pipe()
	outputReader, outputWriter := io.Pipe()
	sent, received := make(chan error, 1), make(chan error, 1)
	go func() {
		err := Send(layersWriter, request, open)
		_ = layersWriter.CloseWithError(err)
		sent <- err
	}()
	go func() {
		err := Receive(outputReader, out, request.MaxSize)
		_ = outputReader.CloseWithError(err)
		received <- err
	}()
	result := Convert(layersReader, SentOutput{outputWriter})
	_, _ = layersReader.Close(), outputWriter.Close()
	err := <-sent
	if errors.Is(err, ErrStopped) {
		err = nil
	}
	if receiveErr := <-received; receiveErr != nil {
		return Result{}, receiveErr
	}
	return result, err
}

// Send writes a request and its layers to Convert. It fails if a layer has another size than the
// request states.
func Send(writer io.Writer, request Request, open Open) error {
	text, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if len(text) > maxRequest {
		return fmt.Errorf("the request to convert an image has %d bytes, and at most %d are possible", len(text), maxRequest)
	}
	s := &stoppableWriter{writer: writer}
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

// sendLayer sends a layer. If Convert stops reading, sendLayer still reads the layer to its end: only
// there a wrong digest shows, which may be why Convert has stopped.
func sendLayer(writer *stoppableWriter, size int64, number int, open Open) error {
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
		return fmt.Errorf("layer %d has %d bytes, but its manifest states %d", number+1, n, size)
	}
	if err == nil && writer.hasStopped {
		err = ErrStopped
	}
	return err
}

// stoppableWriter notes that a write has failed, since the other end has stopped reading.
type stoppableWriter struct {
	writer     io.Writer
	hasStopped bool
}

// Write implements io.Writer.
func (w *stoppableWriter) Write(p []byte) (int, error) {
	n, err := w.writer.Write(p)
	if err != nil {
		w.hasStopped = true
		err = fmt.Errorf("%w: %w", ErrStopped, err)
	}
	return n, err
}
