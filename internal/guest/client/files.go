// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/wire"
)

// ReadFiles writes a file or folder of the guest as a tar stream, whose names begin with that of the
// file. The guest chooses the length of the stream and its names.
func (c *Client) ReadFiles(ctx context.Context, path string, to io.Writer) error {
	k, err := c.begin(ctx, wire.Request{Op: wire.OpRead, Path: path})
	if err != nil {
		return err
	}
	defer k.end()
	for {
		kind, payload, err := k.next(ctx)
		switch {
		case err != nil:
			return err
		case kind == wire.FrameResponse:
			_, err = response(payload)
			return err
		case kind != wire.FrameData:
			return fmt.Errorf("%w: a frame of kind %d among files", ErrBadAnswer, kind)
		}
		if _, err := to.Write(payload); err != nil {
			return err
		}
	}
}

// WriteFiles makes the file or folder of a tar stream in the guest: in a path that is a folder, else as the path.
// What it makes belongs to the user that the entrypoint runs as. It writes a line about files that were overwritten to
// notes. It may return while a Read of the stream goes on, which its caller ends.
func (c *Client) WriteFiles(ctx context.Context, path string, from io.Reader, notes io.Writer) error {
	k, err := c.begin(ctx, wire.Request{Op: wire.OpWrite, Path: path})
	if err != nil {
		return err
	}
	defer k.end()
	sent := make(chan error, 1)
	go func() {
		err := k.sendFiles(from)
		if sent <- err; errors.Is(err, errSource) {
			_ = k.stream.Close() // so that the guest sees that the files are not whole
		}
	}()
	kind, payload, err := k.next(ctx)
	if err == nil && kind != wire.FrameResponse {
		err = fmt.Errorf("%w: a frame of kind %d in place of a response", ErrBadAnswer, kind)
	}
	var answer wire.Response
	if err == nil {
		answer, err = response(payload)
	}
	if err != nil {
		return cmp.Or(sourceError(sent), err)
	}
	if answer.Message != "" {
		_, _ = fmt.Fprintln(notes, config.Printable(answer.Message, config.MaxMessage))
	}
	select {
	case err := <-sent:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// errSource means that the caller's stream has failed.
var errSource = errors.New("reading the files")

func sourceError(sent <-chan error) error {
	select {
	case err := <-sent:
		if errors.Is(err, errSource) {
			return err
		}
	default:
	}
	return nil
}

// sendFiles sends what it reads, and its end.
func (k *call) sendFiles(from io.Reader) error {
	buffer := make([]byte, wire.MaxData)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := wire.WriteFrame(k.stream, wire.FrameData, buffer[:n]); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return wire.WriteFrame(k.stream, wire.FrameEnd, nil)
		case err != nil:
			return fmt.Errorf("%w: %w", errSource, err)
		}
	}
}
