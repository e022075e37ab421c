// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pull has a Docker Engine pull images. It describes the progress for people, and
// replaces errors that may repeat what a registry answered.
package pull

import (
	"context"

	"github.com/moby/moby/client"
)

// Image pulls an image. It calls report with the progress, such as "pulling nginx: 34%
// (12.3/36.1 MB)".
func Image(ctx context.Context, c *client.Client, image string, report func(progress string)) error {
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
		p.addMessage(m)
		report(p.describe(image))
	}
	return ctx.Err()
}
