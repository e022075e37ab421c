// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engines records the engines that an installation has used, so that purge
// finds their servers when Drover does not run any more.
//
// Start with Choose, which `drover up` calls, and Reopen, which purge calls.
package engines

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// Engine is an engine that a driver has run servers on.
type Engine struct {
	Driver string `json:"driver"`
	// Dir is the engine's folder, empty if the engine is not a folder.
	Dir string `json:"dir,omitempty"`
	// ID is the ID that the engine reports. It is empty if the engine did not answer when its
	// driver was chosen. The ID of an engine that is a folder is always known.
	ID string `json:"engineID,omitempty"`
}

// String returns the name that people use for the engine.
func (e Engine) String() string { return e.Driver + "/" + cmp.Or(e.ID, "unknown") }

// Choose returns the names of the drivers in the --vm-driver list. For auto it queries the
// engines. Before any server can be created, it records in file the engines of the drivers,
// and the engines that VirtualMachines are bound to.
func Choose(ctx context.Context, file, list string, bound []api.Binding, o registry.Options) (names []string, err error) {
	o.Registerer = prometheus.NewRegistry()
	opened, err := registry.Open(ctx, list, o)
	if err != nil {
		return nil, err
	}
	used := make([]Engine, len(opened))
	for i, d := range opened {
		names = append(names, d.Name)
		if used[i], err = newEngine(d.Name, o.Settings); err != nil {
			return nil, err
		}
		// An engine that is not a folder may not answer yet. It is then recorded without its ID.
		used[i].ID, err = engineID(ctx, used[i], d.Driver)
		switch {
		case err != nil && used[i].Dir != "":
			return nil, err
		case err != nil:
			o.Log.Info("Drover waits for an engine; until it answers, VirtualMachines there are Unknown", "driver", d.Name, "cause", err.Error())
		}
	}
	return names, recordEngines(file, used, bound, o.Settings)
}

// engineID returns the ID of an engine, by its folder if it has one, else by its driver d.
func engineID(ctx context.Context, e Engine, d driver.Driver) (string, error) {
	if e.Dir != "" {
		return registry.IdentifyDataDir(e.Driver, e.Dir)
	}
	return registry.Identify(ctx, d)
}

func recordEngines(file string, used []Engine, bound []api.Binding, s registry.Settings) error {
	known, err := loadEngines(file)
	if err != nil {
		return err
	}
	var all []Engine
	for _, e := range slices.Concat(known, boundEngines(bound, s), used) {
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Update(file, append(data, '\n'), 0o600)
}

// boundEngines returns the engines, except folders, that VirtualMachines are bound to. So the ID of
// an engine is recorded even if the engine did not answer when its driver was chosen. The record
// without the ID also stays, since the engine that did not answer may be another one, with orphans.
func boundEngines(bound []api.Binding, s registry.Settings) (all []Engine) {
	for _, b := range bound {
		if o := s[b.Driver]; o == nil || o.DataDir() == nil {
			all = append(all, Engine{Driver: b.Driver, ID: b.EngineID})
		}
	}
	return all
}

// newEngine returns a record of a driver's engine. Its path is absolute, because purge may be run in
// another folder.
func newEngine(name string, s registry.Settings) (engine Engine, err error) {
	engine.Driver = name
	if dir := s[name].DataDir(); dir != nil {
		engine.Dir, err = filepath.Abs(*dir)
	}
	return engine, err
}

// DataDirs returns the folders of a driver that the installation has used.
func DataDirs(file, name string) ([]string, error) {
	known, err := loadEngines(file)
	var dirs []string
	for _, engine := range known {
		if engine.Driver == name && engine.Dir != "" {
			dirs = append(dirs, engine.Dir)
		}
	}
	return dirs, err
}

func loadEngines(file string) ([]Engine, error) {
	data, _, err := datadir.Read(file)
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

// Reopened is an engine that the installation has used, with an open driver.
type Reopened struct {
	Engine
	Driver driver.Driver
	// Doubt is set if this may not be the engine that was used. An empty list of servers
	// then proves nothing.
	Doubt error
}

// Reopen opens every engine that the installation has used, except the engines in skip, which has names
// as String returns them. It fails if an engine does not answer, or if another engine answers instead.
func Reopen(ctx context.Context, file string, skip []string, o registry.Options) ([]Reopened, error) {
	known, err := loadEngines(file)
	if err != nil {
		return nil, err
	}
	var all []Reopened
	var errs []error
	for _, e := range known {
		if i := slices.Index(skip, e.String()); i >= 0 {
			continue
		}
		d, err := reopenEngine(ctx, e, o)
		all, errs = append(all, d), append(errs, err)
	}
	for _, name := range skip {
		if !slices.ContainsFunc(known, func(e Engine) bool { return e.String() == name }) {
			errs = append(errs, fmt.Errorf("%s is not an engine that this installation has used; it has used %v", name, known))
		}
	}
	return all, errors.Join(errs...)
}

func reopenEngine(ctx context.Context, e Engine, o registry.Options) (Reopened, error) {
	if e.Dir != "" {
		if _, err := engineID(ctx, e, nil); err != nil {
			return Reopened{}, fmt.Errorf("the engine %s cannot be asked for its servers: %w", e, err)
		}
	}
	o.Settings, o.Registerer = registry.DefaultSettings(), prometheus.NewRegistry()
	if options := o.Settings[e.Driver]; options != nil && options.DataDir() != nil {
		*options.DataDir() = e.Dir
	}
	opened, err := registry.Open(ctx, e.Driver, o)
	if err != nil {
		return Reopened{}, err
	}
	r := Reopened{Engine: e, Driver: opened[0].Driver}
	id, err := engineID(ctx, e, r.Driver)
	switch {
	case err != nil:
		return r, fmt.Errorf("the engine %s cannot be asked for its servers: %w", e, adviseGroup(e, err))
	case e.ID == "":
		r.Doubt = fmt.Errorf("%s: the ID of the engine that was used is unknown, and the engine that answers, %s/%s, does not have servers of this installation", e, e.Driver, id)
	case e.ID != id:
		return r, fmt.Errorf("%s does not answer, but another engine in its place: %s/%s", e, e.Driver, id)
	}
	return r, nil
}
