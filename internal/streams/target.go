// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
)

// findVM sets c.vm to the VirtualMachine of the request.
func (c *call) findVM(ctx context.Context) error {
	vm, err := c.readVM(ctx)
	switch {
	case apierrors.IsNotFound(err):
		return apierrors.NewNotFound(resource, c.name)
	case err != nil:
		return unavailableError("VirtualMachine %s/%s could not be read", c.namespace, c.name)
	}
	c.vm = vm
	return nil
}

// readVM reads the VirtualMachine from the cache, or live if the cache does not have it.
func (c *call) readVM(ctx context.Context) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, c.times.open)
	defer cancel()
	vm, key := &api.VirtualMachine{}, types.NamespacedName{Namespace: c.namespace, Name: c.name}
	err := c.Cached.Get(ctx, key, vm)
	if apierrors.IsNotFound(err) {
		err = c.Live.Get(ctx, key, vm)
	}
	return vm, err
}

// findDriver sets c.driver to the driver whose engine has the server. It fails if this replica does not use that engine.
func (c *call) findDriver(ctx context.Context) error {
	bound := policy.BindingOf(c.vm)
	if bound.Driver == "" {
		return newStatusError(http.StatusConflict, metav1.StatusReasonConflict, "the server of VirtualMachine %s/%s does not exist yet", c.namespace, c.name)
	}
	d, ok := c.Drivers[bound.Driver]
	if !ok {
		return unavailableError("the server belongs to driver %q, which this controller does not run", bound.Driver)
	}
	identifier, ok := driver.As[driver.Identifier](d)
	if !ok {
		return unsupportedError("driver %s does not have an engine", bound.Driver)
	}
	ctx, cancel := context.WithTimeout(ctx, c.times.open)
	defer cancel()
	id, err := identifier.EngineID(ctx)
	if err != nil {
		return unavailableError("the engine of driver %s does not answer", bound.Driver)
	}
	if bound.EngineID != "" && bound.EngineID != id {
		return unavailableError("the server is on another engine of driver %s, which this controller does not use", bound.Driver)
	}
	c.driver = d
	return nil
}

// capability returns the driver as the interface T that the stream needs.
func capability[T any](c *call) (T, error) {
	d, ok := driver.As[T](c.driver)
	if !ok {
		return d, unsupportedError("driver %s does not offer the stream %s", policy.BindingOf(c.vm).Driver, c.stream)
	}
	return d, nil
}

// withTimeout calls open, and ends the stream if open does not return in time. A context with a timeout
// would also end the connection that open returns.
func withTimeout[T any](c *call, open func() (T, error)) (T, error) {
	timer := c.Clock.AfterFunc(c.times.open, func() { c.end(context.DeadlineExceeded) })
	defer timer.Stop()
	return open()
}
