// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package registry lists the available drivers, and opens the selected ones.
//
// Start with entries: a new driver is one row there.
package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fencing"
	"cloudnative.tw/drover/internal/driver/metrics"
)

// Auto selects, in place of names, every driver whose engine answers.
const Auto = "auto"

// askTimeout is how long an engine may take to answer under Auto.
const askTimeout = 5 * time.Second

// entries are the drivers, in the order in which auto prefers them.
var entries = []struct {
	name string
	open func(Options) (driver.Driver, error)
}{
	{"docker", openDocker},
	{"qemu", openQEMU},
	{"fake", openFake},
}

// Options are the options for opening drivers.
type Options struct {
	Settings
	ClusterID  string
	Log        logr.Logger
	Clock      clock.WithTicker
	Registerer prometheus.Registerer
	// Gate grants the right to change something. Nil is for programs that run while
	// no controller does: every change is allowed, under epoch 0.
	Gate fencing.Gate
}

// Opened is a driver that is ready for use, decorated.
type Opened struct {
	Name   string
	Driver driver.Driver
}

// Names returns the names of all drivers.
func Names() []string {
	names := make([]string, len(entries))
	for n, e := range entries {
		names[n] = e.name
	}
	return names
}

// Parse reads a comma-separated list of drivers. Auto gives nil.
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

// Open opens the drivers of a list; the first is the default one. A driver that
// was named is opened even if its engine does not answer.
func Open(ctx context.Context, list string, o Options) ([]Opened, error) {
	names, err := Parse(list)
	if err != nil {
		return nil, err
	}
	auto := names == nil
	if auto {
		names = Names()
	}
	var opened []Opened
	for _, name := range names {
		d, err := open(name, o)
		if err == nil && auto {
			err = answers(ctx, name, d, o.Log)
		}
		switch {
		case err == nil:
			opened = append(opened, Opened{name, d})
		case !auto:
			return nil, fmt.Errorf("driver %s: %w", name, err)
		default:
			o.Log.Info("Driver left out", "driver", name, "cause", err.Error())
		}
	}
	if len(opened) == 0 {
		return nil, errors.New("no engine answers: name a driver with --vm-driver to wait for its engine")
	}
	return opened, nil
}

func open(name string, o Options) (driver.Driver, error) {
	for _, e := range entries {
		if e.name != name {
			continue
		}
		d, err := e.open(o)
		if err != nil {
			return nil, err
		}
		d = metrics.Wrap(name, d, o.Registerer)
		if o.Gate != nil {
			d = fencing.Wrap(name, d, o.Gate, o.Log, o.Registerer)
		}
		return d, nil
	}
	return nil, fmt.Errorf("unknown driver %q", name)
}

// Close ends the drivers' background work, as far as it ends before ctx does.
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

// answers returns an error if the engine does not report its id.
func answers(ctx context.Context, name string, d driver.Driver, log logr.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	id, ok := driver.As[driver.Identifier](d)
	if !ok {
		return errors.New("it does not tell its engine's id")
	}
	engine, err := id.EngineID(ctx)
	if err == nil {
		log.Info("Driver chosen: its engine answers", "driver", name, "engine", engine)
	}
	return err
}
