// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registry lists the available drivers, and opens the selected ones.
//
// Start with rows: a new driver is one row there.
package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/internal/driver/metrics"
	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Auto is a list of drivers that selects those whose engines are installed and answer. It never selects fake, which needs
// no engine, and pod, which would answer in any cluster: these have to be named.
const Auto = "auto"

// identifyTimeout is how long an engine may take to report its id.
const identifyTimeout = 5 * time.Second

// DriverOptions are the options of one driver. Each driver defines them in its package.
type DriverOptions interface {
	// AddFlags adds the flags of the driver, with the current values as defaults.
	AddFlags(fs *pflag.FlagSet)
	// DataDir returns the option that names the folder of the driver's servers, or
	// nil for a driver that does not keep servers in a folder.
	DataDir() *string
	// Open opens the driver.
	Open(env driver.Environment) (driver.Driver, error)
}

// rows are the drivers, in the order in which Auto prefers them.
var rows = []struct {
	name     string
	defaults func() DriverOptions
	// admin opens an engine for command line tools. dir is the folder of fake and qemu.
	admin func(dir string, env driver.Environment) (driver.Admin, error)
	// packages are Debian's packages of the engine. Auto leaves out drivers for which it is empty.
	packages string
}{
	{docker.Name, func() DriverOptions { return docker.DefaultOptions() }, docker.OpenAdmin, "docker.io"},
	{qemu.Name, func() DriverOptions { return qemu.DefaultOptions() }, openQEMUAdmin, "qemu-system-x86 qemu-utils"},
	{fake.Name, func() DriverOptions { return fake.DefaultOptions() }, fake.OpenAdmin, ""},
	{pod.Name, func() DriverOptions { return pod.DefaultOptions() }, openPodAdmin, ""},
}

func openPodAdmin(string, driver.Environment) (driver.Admin, error) {
	return nil, errors.New("the servers of driver pod are pods and PersistentVolumeClaims: use kubectl")
}

func openQEMUAdmin(dir string, env driver.Environment) (driver.Admin, error) {
	f, err := folder.Open(dir, env.Clock)
	if err != nil {
		return nil, err
	}
	program := &machine.Program{Name: qemu.DefaultBinary, Users: &launch.Users{}, Log: env.Log}
	return folder.Admin{Folder: f, ClusterID: env.ClusterID, Program: program}, nil
}

// OpenAdmin opens an engine for command line tools, while controllers may use it. dir is the
// folder of the driver's servers; empty for a driver that does not keep servers in a folder.
func OpenAdmin(name, dir string, env driver.Environment) (driver.Admin, error) {
	for _, row := range rows {
		if row.name == name {
			return row.admin(dir, env)
		}
	}
	return nil, fmt.Errorf("%q is not a driver; known are %s", name, strings.Join(Names(), ", "))
}

// Settings are the options of all drivers, by name.
type Settings map[string]DriverOptions

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	s := Settings{}
	for _, row := range rows {
		s[row.name] = row.defaults()
	}
	// The flags about fetches of qemu apply to pod, too.
	s[pod.Name].(*pod.Options).Fetch = &s[qemu.Name].(*qemu.Options).Fetch
	return s
}

// AddFlags adds the flags of all drivers.
func (s Settings) AddFlags(fs *pflag.FlagSet) {
	for _, row := range rows {
		s[row.name].AddFlags(fs)
	}
}

// Check returns an error, before anything is started, for an invalid list of drivers, for folders and networks that the
// drivers cannot use, and for options of consoles, logs and commands if the program has no --streams-address.
func (s Settings) Check(list string, hasStreamsAddress bool) error {
	names, err := Parse(list)
	for _, name := range names {
		if o, ok := s[name].(interface{ CheckEarly() error }); ok {
			err = errors.Join(err, o.CheckEarly())
		}
		if o, ok := s[name].(interface{ CheckWithoutStreams() error }); ok && !hasStreamsAddress {
			err = errors.Join(err, o.CheckWithoutStreams())
		}
	}
	return err
}

// Options are the options for opening drivers.
type Options struct {
	driver.Environment
	Settings Settings
	// Gate admits changes while the program is the leader. Nil is for programs that
	// run without a controller: every change is allowed, under epoch 0.
	Gate fencing.Gate
}

// Opened is a driver that is ready for use, with its decorators.
type Opened struct {
	Name   string
	Driver driver.Driver
}

// Names returns the names of all drivers.
func Names() []string {
	names := make([]string, len(rows))
	for n, row := range rows {
		names[n] = row.name
	}
	return names
}

// Parse reads a comma-separated list of drivers. For Auto it returns nil.
func Parse(list string) ([]string, error) {
	if list == Auto {
		return nil, nil
	}
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		switch {
		case !slices.Contains(Names(), name):
			return nil, fmt.Errorf("--vm-driver is %q: %q is not a driver; known are %s, or %s alone", list, name, strings.Join(Names(), ", "), Auto)
		case slices.Contains(names, name):
			return nil, fmt.Errorf("--vm-driver is %q: %q is there twice", list, name)
		}
		names = append(names, name)
	}
	return names, nil
}

// Open opens the drivers of a list; the first is the default driver. A driver that
// the list names is opened even if its engine does not answer.
func Open(ctx context.Context, list string, o Options) (opened []Opened, err error) {
	names, err := Parse(list)
	if err != nil {
		return nil, err
	}
	if names == nil {
		return openAnsweringDrivers(ctx, o)
	}
	for _, name := range names {
		d, err := openDriver(name, o)
		if err != nil {
			return nil, fmt.Errorf("driver %s: %w", name, err)
		}
		opened = append(opened, Opened{name, d})
	}
	return opened, nil
}

// openAnsweringDrivers opens the drivers that Auto selects.
func openAnsweringDrivers(ctx context.Context, o Options) (opened []Opened, err error) {
	var failures []error
	for _, row := range rows {
		if row.packages == "" {
			continue
		}
		d, err := openDriver(row.name, o)
		if err == nil {
			err = checkEngineAnswers(ctx, row.name, d, o.Log)
		}
		if err != nil {
			o.Log.Info("Driver left out", "driver", row.name, "cause", err.Error())
			failures = append(failures, fmt.Errorf("driver %s: %w (sudo apt-get install %s)", row.name, err, row.packages))
			continue
		}
		opened = append(opened, Opened{row.name, d})
	}
	if len(opened) == 0 {
		return nil, fmt.Errorf("no engine answers: install or start one of these, or name a driver with --vm-driver to wait for its engine:\n%w", errors.Join(failures...))
	}
	return opened, nil
}

func openDriver(name string, o Options) (driver.Driver, error) {
	d, err := o.Settings[name].Open(o.Environment)
	if err != nil {
		return nil, err
	}
	d = metrics.Wrap(name, d, o.Registerer)
	if o.Gate != nil {
		d = fencing.Wrap(name, d, o.Gate, o.Log, o.Registerer)
	}
	return addCrashPoints(name, d), nil
}

// Close ends the drivers' background work, or fails if that takes longer than ctx.
func Close(ctx context.Context, opened []Opened) error {
	var errs []error
	for _, o := range opened {
		closer, ok := driver.As[driver.Closer](o.Driver)
		if !ok {
			continue
		}
		if err := closer.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", o.Name, err))
		}
	}
	return errors.Join(errs...)
}

// checkEngineAnswers returns an error if the engine does not report its id.
func checkEngineAnswers(ctx context.Context, name string, d driver.Driver, log logr.Logger) error {
	engine, err := Identify(ctx, d)
	if err == nil {
		log.Info("Driver chosen: its engine answers", "driver", name, "engine", engine)
	}
	return err
}

// Identify returns the id of a driver's engine. It fails after identifyTimeout.
func Identify(ctx context.Context, d driver.Driver) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, identifyTimeout)
	defer cancel()
	identifier, ok := driver.As[driver.Identifier](d)
	if !ok {
		return "", errors.New("the driver does not report its engine's id")
	}
	return identifier.EngineID(ctx)
}

// IdentifyDataDir returns the engine id in a driver's folder. It does not open the driver,
// which may need programs that are not installed any more, and would create a missing
// folder.
func IdentifyDataDir(name, path string) (string, error) {
	dir, err := statedir.OpenExisting("the "+name+" driver's folder", path)
	if err != nil {
		return "", err
	}
	return dir.ID()
}
