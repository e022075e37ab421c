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

// ReadFiles copies a file or folder from the guest to out, as a tar stream. In a well-behaved guest's stream, all
// names begin with the base of path. The caller must bound and check all, since a hostile guest may send anything.
func (c *Client) ReadFiles(ctx context.Context, path string, out io.Writer) error {
	call, err := c.begin(ctx, wire.Request{Op: wire.OpRead, Path: path})
	if err != nil {
		return err
	}
	defer call.end()
	for {
		kind, payload, err := call.next(ctx)
		switch {
		case err != nil:
			return err
		case kind == wire.FrameResponse:
			_, err = response(payload)
			return err
		case kind != wire.FrameData:
			return fmt.Errorf("%w: a frame of kind %d while files are read", ErrBadAnswer, kind)
		}
		if _, err := out.Write(payload); err != nil {
			return err
		}
	}
}

// WriteFiles extracts the file or folder in a tar stream into the guest: inside path if that is a folder, otherwise at
// path. The new files belong to the user of the entrypoint. If files were overwritten, a line about them is written to
// notes. A Read of archive may go on after WriteFiles has returned: the caller must unblock it, for example by
// closing archive.
func (c *Client) WriteFiles(ctx context.Context, path string, archive io.Reader, notes io.Writer) error {
	answer, err := c.send(ctx, wire.Request{Op: wire.OpWrite, Path: path}, archive)
	if answer.Message != "" {
		_, _ = fmt.Fprintln(notes, config.Printable(answer.Message, config.MaxMessage))
	}
	return err
}

// WriteMount replaces the files of a folder by the JSON of a mounts.Content. A Read of content may go on after
// WriteMount has returned: the caller must unblock it, for example by closing content.
func (c *Client) WriteMount(ctx context.Context, content io.Reader) error {
	_, err := c.send(ctx, wire.Request{Op: wire.OpMount}, content)
	return err
}

// send sends a request with data, and returns the response.
func (c *Client) send(ctx context.Context, r wire.Request, data io.Reader) (answer wire.Response, err error) {
	call, err := c.begin(ctx, r)
	if err != nil {
		return answer, err
	}
	defer call.end()
	sent := make(chan error, 1)
	go func() {
		err := call.sendFiles(data)
		if sent <- err; errors.Is(err, errSource) {
			_ = call.stream.Close() // without FrameEnd, so that the guest notices that the rest is missing
		}
	}()
	kind, payload, err := call.next(ctx)
	if err == nil && kind != wire.FrameResponse {
		err = fmt.Errorf("%w: a frame of kind %d in place of a response", ErrBadAnswer, kind)
	}
	if err == nil {
		answer, err = response(payload)
	}
	if err != nil {
		return wire.Response{}, cmp.Or(sourceError(sent), err)
	}
	select {
	case err := <-sent:
		return answer, err
	case <-ctx.Done():
		return answer, context.Cause(ctx)
	}
}

// errSource means that the caller's reader has failed.
var errSource = errors.New("reading the files")

// sourceError returns the error of the caller's reader, nil if it has not failed.
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

// sendFiles sends a tar stream, and FrameEnd.
func (k *call) sendFiles(archive io.Reader) error {
	buffer := make([]byte, wire.MaxData)
	for {
		n, err := archive.Read(buffer)
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
