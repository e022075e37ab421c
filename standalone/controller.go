// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/program"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// controllerStopTimeout allows the time that the controller itself grants its running
// calls and fetches.
const controllerStopTimeout = 5500 * time.Millisecond

// controllerComponents returns the controller of Drover and, before it, the choice of its
// drivers, which is shown to the user.
func (o *upRun) controllerComponents(plane *controlplane.Config, console *progress) []supervisor.Component {
	o.UseDataDir(plane.Dir.Layout)
	return []supervisor.Component{
		{Name: "drivers", Within: time.Minute, Ready: func(ctx context.Context) error {
			return o.chooseDrivers(ctx, plane, console)
		}},
		o.controllerComponent(plane),
	}
}

func (o *upRun) controllerComponent(plane *controlplane.Config) supervisor.Component {
	started := make(chan struct{})
	o.Controller.Started = func() { close(started) }
	return supervisor.Component{
		Name: "drover-controller", Within: time.Minute, StopBy: controllerStopTimeout,
		Run: func(ctx context.Context) error {
			return app.Run(ctx, o.Controller, plane.ClientConfig(plane.Keys.Controller()))
		},
		Ready: func(ctx context.Context) error {
			select {
			case <-started:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		},
	}
}

// chooseDrivers resolves auto for this run, so that the controller runs the drivers
// that were shown to the user and that purge can find.
func (o *upRun) chooseDrivers(ctx context.Context, plane *controlplane.Config, console *progress) error {
	cluster, err := plane.Dir.ClusterID()
	if err != nil {
		return err
	}
	bound, err := boundEngines(ctx, plane)
	if err != nil {
		return err
	}
	names, err := engines.Choose(ctx, plane.Dir.Engines(), o.Controller.VMDriver, bound, registry.Options{
		Settings: o.Controller.Drivers, Environment: driver.Environment{
			ClusterID: cluster, OwnDirs: o.Controller.OwnDirs, Clock: clock.RealClock{}, Log: logr.New(&consoleSink{console: console}),
		},
	})
	if err != nil {
		return err
	}
	o.Controller.VMDriver = strings.Join(names, ",")
	o.recorder.SetDrivers(names)
	console.printf("  drivers: %s; the default is %s\n", strings.Join(names, ", "), names[0])
	return nil
}

// boundEngines returns the engines that VirtualMachines are bound to.
func boundEngines(ctx context.Context, plane *controlplane.Config) ([]api.Binding, error) {
	scheme := runtime.NewScheme()
	if err := api.AddToScheme(scheme); err != nil {
		return nil, err
	}
	reader, err := client.New(plane.ClientConfig(plane.Keys.Admin()), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	return program.ListBindings(ctx, reader)
}
