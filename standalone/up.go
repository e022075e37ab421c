// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/signals"
	"cloudnative.tw/drover/internal/login"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/port"
	"cloudnative.tw/drover/standalone/internal/program"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// upRun is one run of drover up.
type upRun struct {
	*program.UpOptions

	recorder *runstate.Recorder
	manager  serviceManager
}

// runUp starts all components and stops them when ctx ends.
func runUp(ctx context.Context, o *program.UpOptions, flags *pflag.FlagSet) error {
	signals.SurviveSIGPIPE() // so that etcd still shuts down cleanly if the output is piped to head
	return (&upRun{UpOptions: o, manager: takeServiceManager()}).run(stopContext(ctx), flags)
}

func (o *upRun) run(ctx context.Context, flags *pflag.FlagSet) (err error) {
	begin := time.Now()
	dir, err := datadir.Open(o.DataDir)
	if err != nil {
		return err
	}
	defer func() { err = program.CloseDir(dir, err) }()
	log := startLogging(ctx, dir, o.Verbosity)
	defer log.close()

	plane, err := o.prepareControlPlane(ctx, dir, log)
	if err != nil {
		return dir.ExplainError(err)
	}
	console := &progress{out: o.Out, begin: begin}
	o.recorder = runstate.NewRecorder(droverVersion, clock.RealClock{}, dir.SetRunState)
	components, err := o.components(plane, console)
	if err != nil {
		return err
	}
	if err := cgroup.EnterController(); err != nil {
		console.printf("  machines share the control group of Drover: %v\n", err)
	}
	console.printf("Drover %s, data in %s, log in %s\n", droverVersion, dir.Layout, dir.LogFile())
	o.recorder.Begin(flags, os.Getenv)
	context.AfterFunc(ctx, func() {
		_ = dir.ClearReady()
		o.recorder.Stopping()
	})
	defer func() { o.recorder.End(err) }()
	runner := supervisor.Runner{Clock: clock.RealClock{}, Observer: console}
	err = runner.Run(ctx, components, func() error {
		console.printNextSteps(plane)
		defer debug.FreeOSMemory() // a start leaves 30 MB of garbage
		err := dir.SetReady()
		if err == nil {
			o.reportReady(console)
		}
		return err
	})
	return dir.ExplainError(err)
}

// reportReady tells the service manager, without which Drover works, too.
func (o *upRun) reportReady(console *progress) {
	if err := o.manager.notify("READY=1"); err != nil {
		console.printf("  the service manager was not told that Drover is ready: %v\n", err)
	}
}

// prepareControlPlane opens the port and updates certificates and kubeconfig.
func (o *upRun) prepareControlPlane(ctx context.Context, dir *datadir.Dir, log *logging) (*controlplane.Config, error) {
	listener, err := port.Listen(ctx, o.BindAddress, o.RequestedPort(), dir)
	if err != nil {
		return nil, err
	}
	quota, err := o.StoreQuota()
	if err != nil {
		return nil, err
	}
	plane := &controlplane.Config{
		Dir: dir, Listener: listener,
		Keys: &pki.Store{
			Dir: dir.PKI(), Clock: clock.RealClock{},
			Hosts: o.servingHosts,
		},
		Log: log.writer, Fatal: log.reportFatal,
		StoreQuota: quota, UnsafeNoFsync: o.UnsafeNoFsync, AllAPIs: o.AllAPIs,
	}
	if err := login.BypassProxy(plane.URL()); err != nil {
		return nil, err
	}
	if _, err := plane.Keys.Ensure(); err != nil {
		return nil, err
	}
	return plane, plane.WriteKubeconfig()
}

// servingHosts returns the names and addresses at which this host currently serves the API.
func (o *upRun) servingHosts() []string {
	hostname, _ := os.Hostname()
	return pki.Hosts(net.ParseIP(o.BindAddress), controlplane.ServiceIP, hostname, port.LocalIPs())
}

func (o *upRun) components(plane *controlplane.Config, console *progress) ([]supervisor.Component, error) {
	if !o.WithoutController {
		streams := &program.LateStreams{}
		plane.Streams, o.Controller.Streams.Serve = streams, streams.Set
	}
	components, err := plane.Components()
	if err != nil {
		return nil, err
	}
	if o.LoginDir != "" {
		logins, err := loginComponent(o.LoginDir, plane)
		if err != nil {
			return nil, err
		}
		components = append(components, logins)
	}
	if o.WithoutController {
		return components, nil
	}
	return append(components, o.controllerComponents(plane, console)...), nil
}
