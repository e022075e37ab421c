// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// KillAPIServer ends kube-apiserver as a crash does.
func (c *Cluster) KillAPIServer() error { return c.post("/processes/kube-apiserver/kill") }

// StartAPIServer starts a kube-apiserver that was killed, and returns when it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	if err := c.post("/processes/kube-apiserver/start"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// RestartAPIServer kills kube-apiserver and starts it again.
func (c *Cluster) RestartAPIServer(ctx context.Context) error {
	return errors.Join(c.KillAPIServer(), c.StartAPIServer(ctx))
}

// StopAPIServer suspends kube-apiserver: connections stay, and nothing answers.
func (c *Cluster) StopAPIServer() error { return c.post("/processes/kube-apiserver/stop") }

// ContinueAPIServer undoes StopAPIServer.
func (c *Cluster) ContinueAPIServer() error { return c.post("/processes/kube-apiserver/cont") }
