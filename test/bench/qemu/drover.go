// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
)

// startByDrover lets Drover create a machine and delete it.
func (b *benchmark) startByDrover(ctx context.Context, c *bench.Controller, name string) (active, output time.Duration, err error) {
	if err := b.waitUntilQuiet(ctx, c); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, errors.New("the machine was not ready in time"))
	defer cancel()
	from, begin := b.log.Len(), time.Now()
	vm, err := b.createVM(ctx, name, api.ActionActive)
	if err != nil {
		return 0, 0, err
	}
	printed, err := firstOutput(ctx, filepath.Join(b.engineDir(), "vms", string(vm.UID), "serial.log"))
	if err != nil {
		return 0, 0, err
	}
	up, err := b.waitForPhase(ctx, from, name, api.PhaseActive)
	if err != nil {
		return 0, 0, err
	}
	return up.Sub(begin), printed.Sub(begin), b.deleteVM(ctx, name)
}

// waitForPhase waits until a VM is in a phase, and returns when that was seen.
func (b *benchmark) waitForPhase(ctx context.Context, from int, name string, phase api.Phase) (time.Time, error) {
	e, err := b.log.Await(ctx, from, func(e bench.Event[*api.VirtualMachine]) bool {
		return e.Object.Name == name && e.Object.Status.Phase == phase
	})
	return e.At, err
}

// deleteVM waits until a VM is gone.
func (b *benchmark) deleteVM(ctx context.Context, name string) error {
	from := b.log.Len()
	if err := b.vms.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := b.log.Await(ctx, from, func(e bench.Event[*api.VirtualMachine]) bool {
		return e.Object.Name == name && e.Type == watch.Deleted
	})
	return err
}
