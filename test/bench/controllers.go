// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"cloudnative.tw/drover/test/framework"
)

// probeTimeout bounds a request to a controller's health endpoint.
const probeTimeout = time.Second

// Controller is a replica of drover-controller.
type Controller struct {
	*framework.Process
	ready string
}

// StartController starts a replica; env is added to this process's environment, args
// to the flags of its health endpoint.
func StartController(ctx context.Context, binary string, env []string, args ...string) (*Controller, error) {
	address, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := framework.StartProcess(binary, append([]string{"--health-probe-bind-address=" + address}, args...), env)
	if err != nil {
		return nil, err
	}
	return &Controller{Process: p, ready: "http://" + address + "/readyz"}, nil
}

// Ready returns nil once the controller's caches are filled.
func (c *Controller) Ready() error {
	if c.HasEnded() {
		return errors.New("the controller has ended")
	}
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.ready, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz says %s", response.Status)
	}
	return nil
}
