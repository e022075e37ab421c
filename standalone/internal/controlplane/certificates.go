// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"

	"k8s.io/klog/v2"

	"cloudnative.tw/drover/standalone/internal/pki"
)

// runWithCertificates runs run, and renews certificates until run returns. All users of the
// certificates in this process read changed files again.
func (c *Config) runWithCertificates(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		if err := c.Keys.RenewPeriodically(ctx, c.kubeconfigUpdater(ctx)); err != nil {
			cancel(err)
		}
	}()
	err := run(ctx)
	if errors.Is(context.Cause(ctx), pki.ErrNewCA) {
		return pki.ErrNewCA
	}
	return err
}

// kubeconfigUpdater returns a function for RenewPeriodically that writes the kubeconfig for people. It
// writes even if no certificate was renewed, since the write after an earlier renewal may have failed.
func (c *Config) kubeconfigUpdater(ctx context.Context) func([]string, error) {
	logger := klog.FromContext(ctx)
	return func(files []string, err error) {
		if len(files) > 0 {
			logger.Info("Certificates renewed", "files", files)
		}
		if err == nil {
			err = c.WriteKubeconfig()
		}
		if err != nil {
			logger.Error(err, "Could not renew certificates, will try again")
		}
	}
}
