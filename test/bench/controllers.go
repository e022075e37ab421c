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
	// controllerBinary is the program that is measured.
	controllerBinary = "bin/drover-controller"
	// requestTimeout bounds a request to a controller.
	requestTimeout = 10 * time.Second
	// readyTimeout is how long a process may take until its caches are filled.
	readyTimeout = 2 * time.Minute
)

// Controller is a measured process: a replica of drover-controller, or a floor.
type Controller struct {
	*framework.Process
	metrics string
}

// StartController starts a controller, without leader election unless args enable it, and waits
// until it is ready. env is added to this process's environment.
func (e *Environment) StartController(ctx context.Context, env []string, args ...string) (*Controller, error) {
	health, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	metrics, err := framework.FindFreeAddress(ctx)
	if err != nil {
		return nil, err
	}
	p, err := framework.StartProcess(controllerBinary, append([]string{
		"--health-probe-bind-address=" + health, "--metrics-bind-address=" + metrics, "--kubeconfig=" + e.Kubeconfig, "--leader-elect=false",
	}, args...), env)
	if err != nil {
		return nil, err
	}
	c := &Controller{Process: p, metrics: "http://" + metrics + "/metrics"}
	return c, c.awaitReady(func() error {
		_, err := get(ctx, "http://"+health+"/readyz")
		return err
	})
}

// WithController runs a controller during do.
func (e *Environment) WithController(ctx context.Context, do func(*Controller) error, args ...string) error {
	c, err := e.StartController(ctx, nil, args...)
	if err != nil {
		return err
	}
	return c.StopWith(do(c))
}

// get requests a page.
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
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return io.ReadAll(response.Body)
}

// awaitReady waits until the process is ready, and stops it if it does not become ready.
func (c *Controller) awaitReady(check func() error) error {
	_, err := Poll(readyTimeout, func() error {
		if c.HasEnded() {
			return nil
		}
		return check()
	})
	if c.HasEnded() {
		err = errors.New("the process has ended")
	}
	if err != nil {
		err = fmt.Errorf("not ready: %w", c.StopWith(err))
	}
	return err
}

// Metrics of the controller.
func (c *Controller) Metrics(ctx context.Context) (framework.Metrics, error) {
	return get(ctx, c.metrics)
}

// StopWith ends the process, and joins err with an error of ending it.
func (c *Controller) StopWith(err error) error {
	if err = errors.Join(err, c.Stop()); err != nil {
		err = fmt.Errorf("%w; the process printed:\n%s", err, c.Output())
	}
	return err
}
