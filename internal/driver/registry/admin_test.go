// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// adminEngine is a real engine whose servers are looked at from outside.
type adminEngine struct {
	name, dir, image string
	opts             func(cluster string) Options
}

func (e adminEngine) open(t *testing.T, cluster string) driver.Driver {
	t.Helper()
	opened, err := Open(t.Context(), e.name, e.opts(cluster))
	assert.NoError(t, err)
	return opened[0].Driver
}

func (e adminEngine) admin(t *testing.T, cluster string) driver.Admin {
	t.Helper()
	a, err := OpenAdmin(e.name, e.dir, e.opts(cluster).Environment)
	assert.NoError(t, err)
	return a
}

// startServer starts a server, which is removed after the test.
func (e adminEngine) startServer(t *testing.T, d driver.Driver, a driver.Admin, name string) driver.Server {
	t.Helper()
	spec := driver.ServerSpec{
		Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: "default", Name: name, Power: driver.PowerOn,
		RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 16 << 20, Image: driver.Image{Source: e.image, PullPolicy: driver.PullNever},
	}
	var server driver.Server
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = a.RemoveRetained(ctx, driver.Target{UID: spec.UID, ID: server.ID})
		assert.Eventually(t, name+" is removed", func(testing.TB) error {
			if err := d.Delete(ctx, spec.Target, false); !errors.Is(err, driver.ErrNotFound) {
				return fmt.Errorf("Delete returned %w", cmp.Or(err, driver.ErrRetry))
			}
			return nil
		})
	})
	assert.Eventually(t, name+" runs", func(t testing.TB) (err error) {
		server, err = d.Ensure(t.Context(), spec)
		if err == nil && server.State != driver.StateRunning {
			err = errors.New(string(server.State) + " " + server.Progress)
		}
		return err
	})
	return server
}

// TestAdmin checks on real engines that a survey shows the servers of one cluster and changes
// nothing, and that only a server that was released can be removed.
func TestAdmin(t *testing.T) {
	t.Parallel()
	for _, name := range []string{docker.Name, qemu.Name, fake.Name} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testAdmin(t, newAdminEngine(t, name))
		})
	}
}

func newAdminEngine(t *testing.T, name string) adminEngine {
	t.Helper()
	e, program := adminEngine{name: name}, ""
	switch name {
	case docker.Name:
		framework.DockerClient(t)
		e.image = framework.GuestPlain
	case qemu.Name:
		framework.QEMUBinary(t)
		e.dir = filepath.Join(framework.ShortTempDir(t), "d")
		e.image = framework.BuildBootGuest(t, t.TempDir(), "A", false)
		program = filepath.Join(t.TempDir(), "drover-machine")
		assert.NoError(t, framework.BuildMachine(program))
	default:
		e.dir = framework.ShortTempDir(t)
	}
	e.opts = func(cluster string) Options {
		o := options()
		o.ClusterID = cluster
		if e.dir != "" {
			*o.Settings[name].DataDir() = e.dir
		}
		machines := o.Settings[qemu.Name].(*qemu.Options)
		machines.ImageDirs, machines.Accel, machines.MachineProgram = []string{filepath.Dir(e.image)}, "tcg", program
		return o
	}
	return e
}

func testAdmin(t *testing.T, e adminEngine) {
	t.Helper()
	own, other := "admin-"+string(uuid.NewUUID()), "admin-"+string(uuid.NewUUID())
	d, theirs := e.open(t, own), e.open(t, other)
	a := e.admin(t, own)
	live := e.startServer(t, d, a, "live")
	kept := e.startServer(t, d, a, "kept")
	foreign := e.startServer(t, theirs, e.admin(t, other), "foreign")
	wantSurvey(t, e, a, "kept Running", "live Running")
	assert.NoError(t, d.Delete(t.Context(), driver.Target{UID: kept.UID, ID: kept.ID, Epoch: 1}, true))
	assert.NoError(t, theirs.Delete(t.Context(), driver.Target{UID: foreign.UID, ID: foreign.ID, Epoch: 1}, true))
	wantSurvey(t, e, a, "kept Running retained", "live Running")

	for text, target := range map[string]driver.Target{
		"one that is in use":  {UID: live.UID, ID: live.ID},
		"another cluster's":   {UID: foreign.UID, ID: foreign.ID},
		"another's id":        {UID: kept.UID, ID: live.ID},
		"another's UID":       {UID: live.UID, ID: kept.ID},
		"one that never was":  {UID: uuid.NewUUID(), ID: "none"},
		"one without its id":  {UID: kept.UID},
		"one with part of it": {UID: kept.UID, ID: kept.ID[:len(kept.ID)-1]},
		"a path":              {UID: kept.UID, ID: "../" + string(kept.UID)},
	} {
		err := a.RemoveRetained(t.Context(), target)
		assert.True(t, err != nil && !driver.Ambiguous(err), "%s: got %v", text, err)
	}
	wantSurvey(t, e, a, "kept Running retained", "live Running")
	assert.NoError(t, a.RemoveRetained(t.Context(), driver.Target{UID: kept.UID, ID: kept.ID}))
	wantSurvey(t, e, a, "live Running")
	assert.ErrorIs(t, "once more", a.RemoveRetained(t.Context(), driver.Target{UID: kept.UID, ID: kept.ID}), driver.ErrNotFound)
	wantSurvey(t, e, e.admin(t, other), "foreign Running retained")
}

// wantSurvey compares names and states, and requires that the driver reports the same engine
// and that no file has changed.
func wantSurvey(t *testing.T, e adminEngine, a driver.Admin, want ...string) {
	t.Helper()
	before := listTree(t, e.dir)
	survey, err := a.Survey(t.Context())
	assert.NoError(t, err)
	after := listTree(t, e.dir)
	assert.True(t, slices.Equal(before, after), "the survey changed\n%q\nto\n%q", before, after)
	id, err := Identify(t.Context(), e.open(t, "any"))
	assert.True(t, err == nil && survey.EngineID == id && (survey.Version == "") == (e.name == fake.Name),
		"the engine is %q, version %q, want %q, %v", survey.EngineID, survey.Version, id, err)
	got := make([]string, 0, len(survey.Servers))
	seen := map[types.UID]bool{}
	for _, s := range survey.Servers {
		text := fmt.Sprint(s.Name, " ", s.State)
		if s.Retained {
			text += " retained"
		}
		assert.True(t, s.ID != "" && s.Err == nil && !s.StartedAt.IsZero() && !seen[s.UID], "it is %+v", s)
		seen[s.UID] = true
		got = append(got, text)
	}
	slices.Sort(got)
	assert.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
}

// listTree returns all files of a folder with their sizes and times. The logs and the
// notifications of machines change by themselves.
func listTree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	if dir == "" {
		return nil
	}
	assert.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, ".log") || strings.Contains(path, "/bells") || strings.Contains(path, "/tmp") {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			all = append(all, fmt.Sprint(path, " ", info.Mode(), info.Size(), info.ModTime()))
		}
		return err
	}))
	return all
}

// TestAdminOfMissingFolders checks that a folder that is gone is an error, and is not made
// again.
func TestAdminOfMissingFolders(t *testing.T) {
	t.Parallel()
	for _, name := range []string{qemu.Name, fake.Name} {
		dir := filepath.Join(t.TempDir(), "gone")
		assert.ErrorIs(t, name, assert.ErrorOf(OpenAdmin(name, dir, options().Environment)), driver.ErrUnavailable)
		left, _ := filepath.Glob(dir)
		assert.True(t, len(left) == 0, "%s made %v", name, left)
	}
	assert.ErrorSays(t, "of an unknown driver", assert.ErrorOf(OpenAdmin("xen", "", options().Environment)), `"xen" is not a driver; known are docker, qemu, fake`)
}
