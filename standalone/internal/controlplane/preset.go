// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"

	"k8s.io/client-go/dynamic"

	"cloudnative.tw/drover/standalone/internal/preset"
)

func (c *Config) newPresets() (*preset.Set, error) {
	client, err := dynamic.NewForConfig(c.ClientConfig(c.Keys.Controller()))
	if err != nil {
		return nil, err
	}
	return preset.NewSet(client, c.AllAPIs)
}

// installPresets installs the roles of users, which an installation in a cluster also has, and the
// policies.
func (c *Config) installPresets(ctx context.Context) error {
	presets, err := c.newPresets()
	if err != nil {
		return err
	}
	return c.waitFor(ctx, presets.Apply)
}

// keepPresets restores roles and policies until ctx ends.
func (c *Config) keepPresets(ctx context.Context) error {
	presets, err := c.newPresets()
	if err != nil {
		return err
	}
	presets.Keep(ctx, c.Keys.Clock)
	return nil
}
