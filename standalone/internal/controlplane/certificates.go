// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"cloudnative.tw/drover/standalone/internal/pki"
)

// certificateCheck is how often certificates are looked at. A clock that jumps
// ahead, as after a suspend, must not leave the API unusable for long.
const certificateCheck = time.Minute

// errNewCA ends the process: what runs knows the old authority alone.
var errNewCA = errors.New("the clock has passed the end of all certificates; they were made anew: start drover again")

// runWithCertificates keeps certificates fresh for as long as run works. All
// who use them here read their files again when those change.
func (c *Config) runWithCertificates(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go c.keepCertificates(ctx, cancel)
	err := run(ctx)
	if errors.Is(context.Cause(ctx), errNewCA) {
		return errNewCA
	}
	return err
}

func (c *Config) keepCertificates(ctx context.Context, giveUp context.CancelCauseFunc) {
	ticker := c.Clock.NewTicker(certificateCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := c.renew(); errors.Is(err, errNewCA) {
			giveUp(err)
		} else if err != nil {
			klog.FromContext(ctx).Error(err, "Could not renew certificates, will try again")
		}
	}
}

// renew also brings people's kubeconfig back to what is on disk, whichever of
// the two writes failed the last time.
func (c *Config) renew() error {
	renewed, err := c.Keys.Ensure()
	if err != nil {
		return err
	}
	if len(renewed) > 0 {
		klog.InfoS("Certificates renewed", "files", renewed)
	}
	if err := c.WriteKubeconfig(); err != nil {
		return fmt.Errorf("write the kubeconfig: %w", err)
	}
	if slices.Contains(renewed, pki.CAFile) {
		return errNewCA
	}
	return nil
}
