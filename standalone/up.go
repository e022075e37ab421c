// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/pki"
	"cloudnative.tw/drover/standalone/internal/port"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

type upOptions struct {
	dataDir           string
	bindAddress       string
	port              int
	portGiven         bool
	withoutController bool
	verbosity         int
	unsafeNoFsync     bool
	allAPIs           bool
	controller        *app.Options
	recorder          *runstate.Recorder
	out               io.Writer
}

func newUpOptions() *upOptions { return &upOptions{controller: newControllerOptions()} }

func newUpCommand() *cobra.Command {
	o := newUpOptions()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a Kubernetes API and the Drover controller until Ctrl-C",
		Long: `Run etcd, kube-apiserver and the Drover controller in this process.

The data dir keeps everything between starts. Servers go on running when Drover
stops, and the next start takes them over. Each flag can also be given as an
environment variable DROVER_<FLAG>, for example DROVER_VM_DRIVER.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			return o.run(stopSignals(cmd.Context()), cmd.Flags())
		},
	}
	o.addFlags(cmd.Flags())
	app.GroupHelp(cmd)
	return cmd
}

func (o *upOptions) addFlags(f *pflag.FlagSet) {
	addDataDirFlag(f, &o.dataDir)
	f.StringVar(&o.bindAddress, "bind-address", "127.0.0.1", "IP address that the API is served on")
	f.IntVar(&o.port, "port", 0, "port that the API is served on, 0 for a free one; kept for later starts (first start: 6443 if free, else a free one)")
	f.BoolVar(&o.withoutController, "without-controller", false, "run only the API, for tests or for a controller of your own")
	f.IntVarP(&o.verbosity, "verbosity", "v", 0, "verbosity of the log in DIR/logs")
	f.BoolVar(&o.unsafeNoFsync, "unsafe-no-fsync", false, "do not wait for the disk: for tests only, a crash of the host loses data")
	f.BoolVar(&o.allAPIs, "all-apis", false, "serve also the APIs about pods on nodes, though nothing here acts on them: for tests that apply manifests of clusters")
	_ = f.MarkHidden("unsafe-no-fsync")
	_ = f.MarkHidden("all-apis")
	o.controller.AddControllerFlags(f)
	f.Lookup("qemu-dir").Usage = "qemu: folder of the machines, one directory each, and of images (default DIR/drivers/qemu)"
	f.Lookup("fake-dir").Usage = "fake: folder with one file per server, shared by all controllers that use it (default DIR/drivers/fake)"
}

// complete checks the flags before anything is started.
func (o *upOptions) complete(cmd *cobra.Command) error {
	if err := app.SetFromEnv(cmd.Flags()); err != nil {
		return err
	}
	o.portGiven = cmd.Flags().Changed("port")
	o.out = cmd.OutOrStdout()
	return o.controller.Validate()
}

// run starts all parts and stops them when ctx ends.
func (o *upOptions) run(ctx context.Context, flags *pflag.FlagSet) (err error) {
	begin := time.Now()
	dir, err := datadir.Open(o.dataDir)
	if err != nil {
		return err
	}
	defer func() { err = closeDir(dir, err) }()
	log := startLogging(ctx, dir, o.verbosity)
	defer log.close()

	plane, err := o.prepareControlPlane(ctx, dir, log)
	if err != nil {
		return dir.Describe(err)
	}
	context.AfterFunc(ctx, func() { _ = dir.ClearReady() })
	console := &progress{out: o.out, begin: begin}
	o.recorder = runstate.NewRecorder(droverVersion, clock.RealClock{}, dir.SetRunState)
	parts, err := o.components(plane, console)
	if err != nil {
		return err
	}
	console.printf("Drover %s, data in %s, log in %s\n", droverVersion, dir.Layout, dir.LogFile())
	o.recorder.Begin(plane.URL(), flags, os.Getenv, parts)
	defer func() { o.recorder.End(err) }()
	runner := supervisor.Runner{Clock: clock.RealClock{}, Observer: supervisor.Observers{console, o.recorder}}
	err = runner.Run(ctx, parts, func() error {
		console.printNextSteps(plane, o.exampleManifest())
		defer debug.FreeOSMemory() // a start leaves 30 MB of garbage
		return dir.SetReady()
	})
	return dir.Describe(err)
}

func closeDir(dir *datadir.Dir, err error) error {
	_ = dir.ClearReady()
	if closeErr := dir.Close(); err == nil {
		return closeErr
	}
	return err
}

// prepareControlPlane opens the port and updates certificates and kubeconfig.
func (o *upOptions) prepareControlPlane(ctx context.Context, dir *datadir.Dir, log *logging) (*controlplane.Config, error) {
	listener, err := port.Listen(ctx, o.bindAddress, o.requestedPort(), dir)
	if err != nil {
		return nil, err
	}
	hostname, _ := os.Hostname()
	plane := &controlplane.Config{
		Dir: dir, Listener: listener,
		Keys: &pki.Store{
			Dir: dir.PKI(), Clock: clock.RealClock{},
			Hosts: pki.Hosts(net.ParseIP(o.bindAddress), controlplane.ServiceIP, hostname, port.LocalIPs()),
		},
		Log: log.writer, Fatal: log.fatal,
		UnsafeNoFsync: o.unsafeNoFsync, AllAPIs: o.allAPIs,
	}
	if _, err := plane.Keys.Ensure(); err != nil {
		return nil, err
	}
	return plane, plane.WriteKubeconfig()
}

func (o *upOptions) requestedPort() *int {
	if !o.portGiven {
		return nil
	}
	return &o.port
}

func (o *upOptions) components(plane *controlplane.Config, console *progress) ([]supervisor.Component, error) {
	if !o.withoutController {
		late := &lateStreams{}
		plane.Streams, o.controller.Streams.Serve = late, late.set
	}
	parts, err := plane.Components()
	if err != nil || o.withoutController {
		return parts, err
	}
	return append(parts, o.controllerComponents(plane, console)...), nil
}

// settingsOf returns the flags of the last `drover up` on a host, and those of the
// environment. It takes over which engine that one used.
func settingsOf(h *doctor.Host) (doctor.Settings, error) {
	up, f := newUpOptions(), pflag.NewFlagSet("up", pflag.ContinueOnError)
	f.ParseErrorsAllowlist.UnknownFlags = true // those of another version
	up.addFlags(f)
	if h.State != nil {
		_ = f.Parse(h.State.Args)                       // else the defaults remain
		for _, name := range runstate.EngineVariables { // and no others that the file may have
			if value := h.State.Environment[name]; value != "" && os.Getenv(name) == "" {
				_ = os.Setenv(name, value)
			}
		}
	}
	if h.PID == 0 {
		if err := app.SetFromEnv(f); err != nil {
			return doctor.Settings{}, err
		}
	}
	return up.settings(h.Layout)
}

func (o *upOptions) settings(dir datadir.Layout) (s doctor.Settings, err error) {
	s = doctor.Settings{
		BindAddress: o.bindAddress, Port: o.port, VMDriver: o.controller.VMDriver, WithoutController: o.withoutController,
		Addresses: map[string]string{
			"--metrics-bind-address": o.controller.MetricsAddress, "--health-probe-bind-address": o.controller.HealthAddress,
			"--pprof-bind-address": o.controller.PprofAddress,
		},
	}
	if machines, is := o.controller.Drivers[qemu.Name].(*qemu.Options); is {
		s.QEMU = *machines
	}
	s.QEMU.Dir, err = filepath.Abs(cmp.Or(s.QEMU.Dir, filepath.Join(dir.Drivers(), qemu.Name)))
	return s, err
}
