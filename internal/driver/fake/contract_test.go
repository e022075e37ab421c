// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/users"
)

// withDelays makes every state that takes time last long enough to be seen.
func withDelays(o fake.Options) fake.Options {
	o.BootTime, o.ShutdownTime = 30*time.Millisecond, 30*time.Millisecond
	return o
}

func TestContractInMemory(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]faketest.OptionsFunc{
		"at once":     func(o fake.Options) fake.Options { return o },
		"taking time": withDelays,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			drivertest.Run(t, faketest.InMemory(shape))
		})
	}
}

func TestContractInDir(t *testing.T) {
	t.Parallel()
	for name, shape := range map[string]faketest.OptionsFunc{
		"at once":     func(o fake.Options) fake.Options { return o },
		"taking time": withDelays,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "engine")
			h := faketest.Harness(outOfBandIn(dir))
			h.Open = func(t *testing.T, clusterID string) driver.Driver {
				return faketest.OpenDriver(t, shape(fake.Options{ClusterID: clusterID, Dir: dir}))
			}
			h.Losable = func(t *testing.T, clusterID string) drivertest.Losable {
				own := filepath.Join(t.TempDir(), "own")
				return drivertest.Losable{
					Driver:  faketest.OpenDriver(t, shape(fake.Options{ClusterID: clusterID, Dir: own})),
					Lose:    func() { renameFile(t, own, own+".away") },
					Restore: func() { renameFile(t, own+".away", own) },
				}
			}
			h.Visible = func(t *testing.T, _ driver.Server) string { return contentsOf(t, dir) }
			drivertest.Run(t, h)
		})
	}
}

// lateDriver fails a third of all calls, as the engine of a busy host does that answers too late.
type lateDriver struct {
	driver.Driver
	random *rand.Rand
}

func (d *lateDriver) Unwrap() driver.Driver { return d.Driver }

func (d *lateDriver) fail() error {
	if d.random.IntN(3) == 0 {
		return driver.Errorf(driver.ErrUnavailable, "the engine is late")
	}
	return nil
}

func (d *lateDriver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.fail(); err != nil {
		return driver.Server{}, err
	}
	return d.Driver.Ensure(ctx, spec)
}

func (d *lateDriver) Delete(ctx context.Context, target driver.Target, retain bool) error {
	if err := d.fail(); err != nil {
		return err
	}
	return d.Driver.Delete(ctx, target, retain)
}

func (d *lateDriver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	return d.Driver.List(ctx, uids...)
}

func (d *lateDriver) Usage(ctx context.Context, uids ...types.UID) ([]driver.Usage, error) {
	if err := d.fail(); err != nil {
		return nil, err
	}
	return d.Driver.Usage(ctx, uids...)
}

// TestContractOfALateEngine checks that no case of the contract fails on a host that is so busy that calls have to be
// repeated.
func TestContractOfALateEngine(t *testing.T) {
	t.Parallel()
	h := faketest.InMemory(func(o fake.Options) fake.Options { return o })
	drivertest.Run(t, h.Decorated(func(d driver.Driver) driver.Driver { return &lateDriver{d, users.NewRandom(1, 0)} }))
}

func renameFile(t *testing.T, from, to string) {
	t.Helper()
	assert.ReportError(t, os.Rename(from, to))
}

func outOfBandIn(dir string) faketest.OutOfBand {
	return faketest.OutOfBand{
		Edit: func(t *testing.T, uid types.UID, change func(*fake.Record)) {
			t.Helper()
			framework.EditJSON(t, filepath.Join(dir, string(uid)+".json"), change)
		},
		Remove: func(t *testing.T, s driver.Server) {
			t.Helper()
			path := filepath.Join(dir, string(s.UID)+".json")
			if s.Retained {
				path = filepath.Join(dir, "retained", string(s.UID)+"."+s.ID+".json")
			}
			assert.ReportError(t, os.Remove(path))
		},
	}
}

// contentsOf returns all text in a folder, names included.
func contentsOf(t *testing.T, dir string) string {
	t.Helper()
	text := ""
	folder := os.DirFS(dir)
	err := fs.WalkDir(folder, ".", func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || (err == nil && entry.IsDir()) {
			return nil
		}
		content, err := fs.ReadFile(folder, path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		text += path + "\n" + string(content)
		return nil
	})
	assert.NoError(t, err)
	return text
}
