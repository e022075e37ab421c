// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// surveyTimeout is how long the survey of one engine may take.
const surveyTimeout = 8 * time.Second

// Surveyed is the survey of an engine that the installation has used.
type Surveyed struct {
	Engine
	driver.Survey

	// Err says why the engine could not be surveyed.
	Err error
}

// Known returns the engines that the installation has used.
func Known(file string) ([]Engine, error) { return loadEngines(file) }

// Survey surveys all engines that the installation has used, at the same time, without changing
// them. An engine that does not answer does not delay the others. An engine that is recorded both
// with and without its ID appears once.
func Survey(ctx context.Context, file string, env driver.Environment) ([]Surveyed, error) {
	known, err := loadEngines(file)
	if err != nil {
		return nil, err
	}
	all := make([]Surveyed, len(known))
	var group errgroup.Group
	for i, e := range known {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
			defer cancel()
			all[i] = Surveyed{Engine: e}
			all[i].Survey, all[i].Err = datadir.Until(ctx, "looking at "+e.String(), func() (driver.Survey, error) {
				return surveyEngine(ctx, e, env)
			})
			return nil
		})
	}
	_ = group.Wait()
	return slices.DeleteFunc(all, func(s Surveyed) bool { return s.isRepeated(known) }), nil
}

// isRepeated reports whether an engine that is recorded without its ID is also recorded with its ID.
func (s Surveyed) isRepeated(known []Engine) bool {
	return s.ID == "" && slices.ContainsFunc(known, func(e Engine) bool {
		return e.Driver == s.Driver && e.Dir == s.Dir && e.ID != "" && (e.ID == s.EngineID || s.Err != nil)
	})
}

func surveyEngine(ctx context.Context, e Engine, env driver.Environment) (driver.Survey, error) {
	a, err := OpenAdmin(e, env)
	if err != nil {
		return driver.Survey{}, err
	}
	found, err := a.Survey(ctx)
	if err == nil && e.ID != "" && found.EngineID != e.ID {
		return driver.Survey{}, fmt.Errorf("%w: %s/%s", ErrAnotherEngine, e.Driver, found.EngineID)
	}
	return found, adviseGroup(e, err)
}

// adviseGroup adds to an error how a user gets the right to use a Docker engine. If root runs the command and
// became the owner of the data dir, it has the owner's groups that the host lists. It does not have the groups
// of a systemd unit: only the owner could name them, and might name too many.
func adviseGroup(e Engine, err error) error {
	const denied = "permission denied" // the error of the client does not wrap EACCES
	if err == nil || e.Driver != docker.Name || !strings.Contains(err.Error(), denied) {
		return err
	}
	return fmt.Errorf("%w: user %s is not in the group of its socket (SupplementaryGroups= of a service do not count here); sudo usermod --append --groups docker %[3]s adds it, which gives the user root privileges on this host",
		err, datadir.UserName(os.Geteuid()), printable.ShellWord(datadir.UserName(os.Geteuid())))
}

// OpenAdmin opens an engine for administration, even while a Drover uses the engine.
func OpenAdmin(e Engine, env driver.Environment) (driver.Admin, error) {
	return registry.OpenAdmin(e.Driver, e.Dir, env)
}

// ErrAnotherEngine means that another engine answers in place of the engine that was used.
var ErrAnotherEngine = errors.New("another engine answers in its place")

// IsGone reports whether the engine is a folder that does not exist any more.
func (s Surveyed) IsGone() bool { return s.Dir != "" && errors.Is(s.Err, fs.ErrNotExist) }
