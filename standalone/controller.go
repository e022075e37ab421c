// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/part"
)

// controllerPart is Drover's own controller.
func controllerPart(_ *upOptions, _ *controlplane.Config) part.Part {
	return part.Part{
		Name: "drover-controller",
		Run: func(context.Context) error {
			return errors.New("this build has no controller yet: use --without-controller")
		},
		StopBy: 4 * time.Second,
	}
}
