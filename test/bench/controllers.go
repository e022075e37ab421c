// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"cloudnative.tw/drover/test/framework"
)

const (
	// requestTimeout bounds a request to a controller.
	requestTimeout = 10 * time.Second
	// readyTimeout is how long a process may take until its caches are filled.
	readyTimeout = 2 * time.Minute
)

// Controller is a process that is measured: a replica of drover-controller, or a floor.
type Controller struct {
	*framework.Process
	metrics string
	check   func() error
}

// StartController starts a replica; env is added to this process's environment, args
// to the flags of its addresses.
func StartController(ctx context.Context, binary string, env []string, args ...string) (*Controller, error) {
	health, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := framework.StartProcess(binary, append([]string{
		"--health-probe-bind-address=" + health, "--metrics-bind-address=" + metrics,
	}, args...), env)
	if err != nil {
		return nil, err
	}
	return &Controller{Process: p, metrics: "http://" + metrics + "/metrics", check: func() error {
		_, err := get(context.Background(), "http://"+health+"/readyz")
		return err
	}}, nil
}

// get reads a page.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s says %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// Ready returns nil once the process's caches are filled.
func (c *Controller) Ready() error {
	if c.HasEnded() {
		return errors.New("it has ended")
	}
	return c.check()
}

func (c *Controller) waitUntilReady() error {
	if _, err := Poll(readyTimeout, c.Ready); err != nil {
		return fmt.Errorf("not ready: %w", c.StopWith(err))
	}
	return nil
}

// Metrics of the controller.
func (c *Controller) Metrics(ctx context.Context) (framework.Metrics, error) {
	return get(ctx, c.metrics)
}

// StopWith ends the process and joins an error of what was done with it.
func (c *Controller) StopWith(err error) error {
	if err = errors.Join(err, c.Stop()); err != nil {
		err = fmt.Errorf("%w; the process printed:\n%s", err, c.Output())
	}
	return err
}
