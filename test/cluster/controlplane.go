// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"

	"cloudnative.tw/drover/test/assert"
)

// KillAPIServer ends kube-apiserver by SIGKILL.
func (c *Cluster) KillAPIServer() error { return c.post("/processes/kube-apiserver/kill") }

// StartAPIServer starts kube-apiserver after KillAPIServer, and waits until it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.post("/processes/kube-apiserver/start"); err != nil {
		return err
	}
	return assert.Poll(ctx, "kube-apiserver is ready", func() error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// RestartAPIServer kills kube-apiserver and starts it again.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	return errors.Join(c.KillAPIServer(), c.StartAPIServer(ctx))
}
