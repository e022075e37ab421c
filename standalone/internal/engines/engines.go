// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engines records the drivers that an installation has run, so that purge
// finds their servers when nothing runs any more.
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
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// askWithin is how long an engine may take to report its id.
const askWithin = 5 * time.Second

// Engine is an engine that a driver has run servers on.
type Engine struct {
	Driver  string `json:"driver"`
	FakeDir string `json:"fakeDir,omitempty"`
	QEMUDir string `json:"qemuDir,omitempty"`
	// ID is the engine's own id. It is empty if the engine did not answer when its
	// driver was chosen, and in records that an older version has written.
	ID string `json:"engineID,omitempty"`
}

// String returns the name that people use for the engine.
func (e Engine) String() string { return e.Driver + "/" + cmp.Or(e.ID, "unknown") }

// folder returns the folder of an engine that is one.
func (e Engine) folder() string { return cmp.Or(e.FakeDir, e.QEMUDir) }

// Choose resolves the --vm-driver list to names; for auto it queries the engines. It
// records them in file before any server can be made, together with the engines that
// VirtualMachines are bound to.
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
		// An engine that does not answer yet is recorded without its id.
		used[i].ID, _ = askID(ctx, used[i], d.Driver)
	}
	return names, keep(ctx, file, used, bound)
}

// askID returns the engine's id. The id of a folder is read without its driver, which
// may need programs that are gone, and would recreate a folder that is gone.
func askID(ctx context.Context, e Engine, d driver.Driver) (string, error) {
	if path := e.folder(); path != "" {
		dir, err := statedir.OpenExisting("the "+e.Driver+" driver's folder", path)
		if err != nil {
			return "", err
		}
		return dir.ID()
	}
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	who, ok := driver.As[driver.Identifier](d)
	if !ok {
		return "", errors.New("it does not tell its engine's id")
	}
	return who.EngineID(ctx)
}

func keep(ctx context.Context, file string, used []Engine, bound []api.Binding) error {
	known, err := load(file)
	if err != nil {
		return err
	}
	var all []Engine
	for _, e := range append(identify(ctx, known, bound), used...) {
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

// identify returns the engines that are known or bound to. For a folder without an id it
// reads that. Any other engine without one stays so: even if no VirtualMachine is bound
// to it, it may have servers, such as orphans.
func identify(ctx context.Context, known []Engine, bound []api.Binding) []Engine {
	all := slices.Clone(known)
	for n, e := range all {
		if e.ID == "" && e.folder() != "" {
			all[n].ID, _ = askID(ctx, e, nil)
		}
	}
	for _, b := range bound {
		if !isFolder(b.Driver) {
			all = append(all, Engine{Driver: b.Driver, ID: b.EngineID})
		}
	}
	return all
}

// isFolder reports whether a driver's engines are folders.
func isFolder(name string) bool { return name == "fake" || name == "qemu" }

// newEngine records absolute paths, because purge may be run in another folder.
func newEngine(name string, s registry.Settings) (Engine, error) {
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

// QEMUDirs returns the folders of machines that the installation has used.
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

// Reopened is an engine that the installation has used.
type Reopened struct {
	Engine
	Driver driver.Driver
	// Doubt is set if nothing proves that this is the engine that was used: then an
	// empty list of servers from it proves nothing.
	Doubt error
}

// Reopen opens every engine that the installation has used, except those in skip, which
// are named as by String. It fails if another engine answers, or none.
func Reopen(ctx context.Context, file string, skip []string, o registry.Options) ([]Reopened, error) {
	known, err := load(file)
	if err != nil {
		return nil, err
	}
	var all []Reopened
	var errs []error
	for _, e := range known {
		if i := slices.Index(skip, e.String()); i >= 0 {
			continue
		}
		d, err := reopen(ctx, e, o)
		all, errs = append(all, d), append(errs, err)
	}
	for _, name := range skip {
		if !slices.ContainsFunc(known, func(e Engine) bool { return e.String() == name }) {
			errs = append(errs, fmt.Errorf("%s is no engine that this installation has used; it has used %v", name, known))
		}
	}
	return all, errors.Join(errs...)
}

func reopen(ctx context.Context, e Engine, o registry.Options) (Reopened, error) {
	if e.folder() != "" {
		if _, err := askID(ctx, e, nil); err != nil {
			return Reopened{}, fmt.Errorf("%s cannot be asked: %w", e, err)
		}
	}
	o.Settings, o.Registerer = registry.DefaultSettings(), prometheus.NewRegistry()
	o.FakeDir, o.QEMUDir = e.FakeDir, e.QEMUDir
	opened, err := registry.Open(ctx, e.Driver, o)
	if err != nil {
		return Reopened{}, err
	}
	r := Reopened{Engine: e, Driver: opened[0].Driver}
	id, err := askID(ctx, e, r.Driver)
	switch {
	case err != nil:
		return r, fmt.Errorf("%s cannot be asked: %w", e, err)
	case e.ID == "" && e.folder() == "":
		r.Doubt = fmt.Errorf("%s: no id is kept of the engine that was used, and the one that answers, %s/%s, has no servers of this installation", e, e.Driver, id)
	case e.ID != "" && e.ID != id:
		return r, fmt.Errorf("%s does not answer, but another engine in its place: %s/%s", e, e.Driver, id)
	}
	return r, nil
}
