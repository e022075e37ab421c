// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pull makes a Docker Engine pull images. It describes the progress for users, and
// replaces errors that may quote a registry. Start with Image.
package pull

import (
	"context"

	"github.com/moby/moby/client"
)

// Fetch is notified of the progress of a pull.
type Fetch interface {
	// Report is called with the status, such as "pulling nginx: 34% (12.3/36.1 MB)".
	Report(status string)
	// Expect is called with the size of all layers in bytes that is known so far. An error ends the pull.
	Expect(total int64) error
	// Received is called with the number of bytes that were received since the last call.
	Received(bytes int64)
}

// Image pulls an image, and reports the progress to f.
func Image(ctx context.Context, c *client.Client, image string, f Fetch) error {
	stream, err := c.ImagePull(ctx, image, client.ImagePullOptions{})
	if err != nil {
		return explainError(err)
	}
	p := progress{}
	for m, err := range stream.JSONMessages(ctx) {
		switch {
		case err != nil:
			return explainError(err)
		case m.Error != nil:
			return explainError(m.Error)
		}
		if err := p.addMessage(m, f); err != nil {
			return err
		}
		f.Report(p.describe(image))
	}
	return ctx.Err()
}
