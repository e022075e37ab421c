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

// findVM reads the VirtualMachine.
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

// readVM reads the VirtualMachine from the cache, or live if the cache has none.
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

// findDriver finds the driver whose engine has the server, if that is one of this replica.
func (c *call) findDriver(ctx context.Context) error {
	bound := policy.BindingOf(c.vm)
	if bound.Driver == "" {
		return newStatusError(http.StatusConflict, metav1.StatusReasonConflict, "the server of VirtualMachine %s/%s does not exist yet", c.namespace, c.name)
	}
	d, ok := c.Drivers[bound.Driver]
	if !ok {
		return unavailableError("the server is one of driver %q, which does not run in the controller that was asked", bound.Driver)
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

// capability returns the driver's implementation of a stream.
func capability[T any](c *call) (T, error) {
	d, ok := driver.As[T](c.driver)
	if !ok {
		return d, unsupportedError("driver %s does not offer the stream %s", policy.BindingOf(c.vm).Driver, c.stream)
	}
	return d, nil
}

// withTimeout opens a connection that lasts as long as the stream's context. It ends the stream if the
// engine does not answer in time.
func withTimeout[T any](c *call, ask func() (T, error)) (T, error) {
	timer := c.Clock.AfterFunc(c.times.open, func() { c.end(context.DeadlineExceeded) })
	defer timer.Stop()
	return ask()
}
