// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engines keeps track of the drivers that an installation has run, so
// that purge finds their servers when nothing runs any more.
//
// Start with Choose, which `drover up` calls, and Reopen, which purge does.
package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/table"
	"cloudnative.tw/drover/standalone/internal/atomicfile"
)

// Engine is a driver with what tells its servers' place.
type Engine struct {
	Driver  string `json:"driver"`
	FakeDir string `json:"fakeDir,omitempty"`
	QEMUDir string `json:"qemuDir,omitempty"`
}

// Choose turns the --vm-driver list into names, asking engines where it is
// auto, and keeps them in file before any server can be made. It also tells, a
// line each, of the servers of other installations that it sees.
func Choose(ctx context.Context, file, list string, o table.Options) (names, others []string, err error) {
	o.Registerer = prometheus.NewRegistry()
	opened, err := table.Open(ctx, list, o)
	if err != nil {
		return nil, nil, err
	}
	names = make([]string, len(opened))
	for i, d := range opened {
		names[i] = d.Name
	}
	return names, table.Others(ctx, opened), keep(file, names, o.Settings)
}

func keep(file string, names []string, s table.Settings) error {
	known, err := load(file)
	if err != nil {
		return err
	}
	for _, name := range names {
		engine, err := newEngine(name, s)
		if err != nil {
			return err
		}
		if !slices.Contains(known, engine) {
			known = append(known, engine)
		}
	}
	data, err := json.MarshalIndent(known, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Update(file, append(data, '\n'), 0o600)
}

// newEngine has whole paths, for purge may be run in another folder.
func newEngine(name string, s table.Settings) (Engine, error) {
	engine := Engine{Driver: name}
	var err error
	switch name {
	case "fake":
		engine.FakeDir, err = filepath.Abs(s.FakeDir)
	case "qemu":
		engine.QEMUDir, err = filepath.Abs(s.QEMUDir)
	}
	return engine, err
}

// QEMUDirs are the folders of machines that the installation has used.
func QEMUDirs(file string) ([]string, error) {
	known, err := load(file)
	var dirs []string
	for _, engine := range known {
		if engine.QEMUDir != "" {
			dirs = append(dirs, engine.QEMUDir)
		}
	}
	return dirs, err
}

func load(file string) ([]Engine, error) {
	data, err := os.ReadFile(file) //nolint:gosec // A file of the data dir.
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var known []Engine
	if err := json.Unmarshal(data, &known); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w", file, err)
	}
	return known, nil
}

// Reopen opens every driver that the installation has run.
func Reopen(ctx context.Context, file, clusterID string, c clock.WithTicker, log logr.Logger) ([]table.Opened, error) {
	known, err := load(file)
	if err != nil {
		return nil, err
	}
	var all []table.Opened
	for _, engine := range known {
		settings := table.DefaultSettings()
		settings.FakeDir, settings.QEMUDir = engine.FakeDir, engine.QEMUDir
		opened, err := table.Open(ctx, engine.Driver, table.Options{
			Settings: settings, ClusterID: clusterID, Clock: c, Log: log, Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			return nil, err
		}
		all = append(all, opened...)
	}
	return all, nil
}
