// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// admin is a folder of simulated servers as command line tools see it.
type admin struct {
	store     *dirStore
	clusterID string
	clock     clock.PassiveClock
}

// OpenAdmin opens an existing folder, without creating anything in it.
func OpenAdmin(path string, env driver.Environment) (driver.Admin, error) {
	dir, err := statedir.OpenExisting("the fake driver's folder", path)
	if err != nil {
		return nil, err
	}
	dir.Volatile = true
	return &admin{store: &dirStore{dir: dir, known: map[string]bool{}}, clusterID: env.ClusterID, clock: env.Clock}, nil
}

// Survey implements driver.Admin.
func (a *admin) Survey(ctx context.Context) (driver.Survey, error) {
	id, err := a.store.engineID()
	if err != nil {
		return driver.Survey{}, err
	}
	records, err := a.store.listRecords(ctx)
	if err != nil {
		return driver.Survey{}, err
	}
	survey := driver.Survey{EngineID: id}
	for _, r := range records {
		if r.ClusterID == a.clusterID {
			survey.Servers = append(survey.Servers, serverOf(r, a.clock.Now()))
		}
	}
	return survey, nil
}

// RemoveRetained implements driver.Admin.
func (a *admin) RemoveRetained(ctx context.Context, t driver.Target) error {
	if err := errors.Join(driver.CheckUID(t.UID), driver.CheckUID(types.UID(t.ID))); err != nil {
		return err
	}
	lock, err := a.store.dir.Lock(t.UID)
	if err != nil {
		return a.store.classifyError(err)
	}
	defer lock.Release()
	name := filepath.Join(retainedDir, string(t.UID)+"."+t.ID+fileSuffix)
	r, err := a.store.readRecordByName(ctx, name)
	if err != nil {
		return err
	}
	if r == nil || r.ClusterID != a.clusterID || r.ID != t.ID {
		return driver.Errorf(driver.ErrNotFound, "this cluster has no released server of UID %s with id %s", t.UID, t.ID)
	}
	if err := os.Remove(a.store.dir.Path(name)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
