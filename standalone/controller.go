// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/controller/policy"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// controllerStopTimeout allows the time that the controller itself grants its running
// calls and fetches.
const controllerStopTimeout = 5500 * time.Millisecond

// leaseHolder is the name under which every drover up holds the Lease of its own API.
// Neither a pod nor a host can have that name.
const leaseHolder = "drover_up"

// relaxedElection returns election times for a host where a fast takeover by another
// process matters little. What matters is that a slow disk does not end this process,
// and the API with it.
func relaxedElection() leader.Settings {
	return leader.Settings{
		Lease: time.Minute, Renew: 40 * time.Second, Retry: 5 * time.Second,
		Request: 5 * time.Second, Margin: time.Second,
	}
}

// newControllerOptions returns the controller's options for a program that shares its
// host: no ports but the API's, and simulated servers that outlive the process. Another
// drover up that holds the Lease is dead, because this one holds the data dir, which only
// one process can: there is no wait for its Lease.
func newControllerOptions() *app.Options {
	o := app.NewOptions()
	o.MetricsAddress, o.HealthAddress, o.OwnCRD = "0", "0", true
	o.HolderIdentity, o.LeaseLockNamespace, o.Election = leaseHolder, metav1.NamespaceDefault, relaxedElection()
	o.DeadHolder = func(identity string) bool { return strings.HasPrefix(identity, leaseHolder+"_") }
	return o
}

// controllerComponents returns Drover's own controller and, before it, the choice of its
// drivers, which is shown to the user.
func (o *upOptions) controllerComponents(plane *controlplane.Config, console *progress) []supervisor.Component {
	for name, options := range o.controller.Drivers {
		if dir := options.DataDir(); dir != nil && *dir == "" {
			*dir = filepath.Join(plane.Dir.Drivers(), name)
		}
	}
	o.controller.OwnDirs = []string{string(plane.Dir.Layout)}
	return []supervisor.Component{
		{Name: "drivers", Within: time.Minute, Ready: func(ctx context.Context) error {
			return o.chooseDrivers(ctx, plane, console)
		}},
		o.controllerComponent(plane),
	}
}

func (o *upOptions) controllerComponent(plane *controlplane.Config) supervisor.Component {
	started := make(chan struct{})
	o.controller.Started, o.controller.Elected = func() { close(started) }, o.recorder.SetEpoch
	return supervisor.Component{
		Name: "drover-controller", Within: time.Minute, StopBy: controllerStopTimeout,
		Run: func(ctx context.Context) error {
			ctrl.SetLogger(klog.Background())
			return app.Run(ctx, o.controller, plane.ClientConfig(plane.Keys.Controller()))
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

// exampleManifest returns the path of a manifest for a first VirtualMachine. That of a driver
// which needs an image has a place for the user to name one.
func (o *upOptions) exampleManifest() string {
	first, _, _ := strings.Cut(o.controller.VMDriver, ",")
	needs, is := o.controller.Drivers[first].(interface{ NeedsImage() bool })
	if is && needs.NeedsImage() {
		return "examples/" + first + "-vm.yaml"
	}
	return "examples/test-vm.yaml"
}

// chooseDrivers resolves auto for this run, so that the controller runs the drivers
// that were shown to the user and that purge can find.
func (o *upOptions) chooseDrivers(ctx context.Context, plane *controlplane.Config, console *progress) error {
	cluster, err := plane.Dir.ClusterID()
	if err != nil {
		return err
	}
	bound, err := boundEngines(ctx, plane)
	if err != nil {
		return err
	}
	names, err := engines.Choose(ctx, plane.Dir.Engines(), o.controller.VMDriver, bound, registry.Options{
		Settings: o.controller.Drivers, Environment: driver.Environment{
			ClusterID: cluster, OwnDirs: o.controller.OwnDirs, Clock: clock.RealClock{}, Log: logr.New(&consoleSink{console: console}),
		},
	})
	if err != nil {
		return err
	}
	o.controller.VMDriver = strings.Join(names, ",")
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
	return listBindings(ctx, reader)
}

func listBindings(ctx context.Context, reader client.Reader) (all []api.Binding, err error) {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page := &api.VirtualMachineList{}
		return page, reader.List(ctx, page, &client.ListOptions{Limit: o.Limit, Continue: o.Continue})
	})
	seen := map[api.Binding]bool{}
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		vm, ok := object.(*api.VirtualMachine)
		if !ok {
			return fmt.Errorf("the list of VirtualMachines has a %T", object)
		}
		if bound := policy.BindingOf(vm); bound.EngineID != "" && !seen[bound] {
			seen[bound] = true
			all = append(all, bound)
		}
		return nil
	})
	return all, err
}
