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

// surveyTimeout is how long one engine may take.
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

// Survey looks at every engine that the installation has used, at the same time. It changes
// none of them, and one that does not answer does not delay the others. An engine that is
// recorded both with its id and without appears once.
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

// isRepeated reports whether an engine without a recorded id is one that is recorded with it.
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

// adviseGroup says how a user gets the right to use a Docker engine. Root that became the owner
// of the data dir has the groups that the host lists, and not those of a systemd unit: only the
// owner could say which these were, and might name more than it has.
func adviseGroup(e Engine, err error) error {
	const denied = "permission denied" // the client's error wraps none
	if err == nil || e.Driver != docker.Name || !strings.Contains(err.Error(), denied) {
		return err
	}
	return fmt.Errorf("%w: user %s is not in the group of its socket (SupplementaryGroups= of a service do not count here); sudo usermod --append --groups docker %[3]s adds it, which gives it all rights on this host",
		err, datadir.UserName(os.Geteuid()), printable.ShellWord(datadir.UserName(os.Geteuid())))
}

// OpenAdmin opens an engine beside the Drover that uses it.
func OpenAdmin(e Engine, env driver.Environment) (driver.Admin, error) {
	return registry.OpenAdmin(e.Driver, e.Dir, env)
}

// ErrAnotherEngine means that another engine answers than the one that was used.
var ErrAnotherEngine = errors.New("another engine answers in its place")

// IsGone reports whether the engine is a folder that does not exist any more.
func (s Surveyed) IsGone() bool { return s.Dir != "" && errors.Is(s.Err, fs.ErrNotExist) }
