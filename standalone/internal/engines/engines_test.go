// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/test/assert"
)

const cluster = "cluster-1"

func options(fakeDir string) registry.Options {
	settings := registry.DefaultSettings()
	*settings["fake"].DataDir() = fakeDir
	return registry.Options{
		Settings:    settings,
		Environment: driver.Environment{ClusterID: cluster, Clock: clock.RealClock{}, Log: logr.Discard()},
	}
}

func choose(t *testing.T, file, fakeDir string) []string {
	t.Helper()
	names, err := Choose(t.Context(), file, "fake", nil, options(fakeDir))
	assert.NoError(t, err)
	return names
}

func again(t *testing.T, file string) []Reopened {
	t.Helper()
	opened, err := Reopen(t.Context(), file, nil, options(""))
	assert.NoError(t, err)
	return opened
}

// TestReopenFindsTheServersOfEarlierRuns checks that servers in every folder that was ever
// used are found again.
func TestReopenFindsTheServersOfEarlierRuns(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.json")
	for _, folder := range []string{"one", "two", "one"} {
		names := choose(t, file, filepath.Join(dir, folder))
		assert.True(t, slices.Equal(names, []string{"fake"}), "chose %v", names)
	}
	var uids []types.UID
	for i, opened := range again(t, file) {
		uid := types.UID([]string{"11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"}[i])
		makeServer(t, opened.Driver, uid)
		uids = append(uids, uid)
	}
	var found []types.UID
	for _, opened := range again(t, file) {
		servers, err := opened.Driver.List(t.Context())
		assert.NoError(t, err)
		for _, s := range servers {
			found = append(found, s.UID)
		}
	}
	assert.True(t, len(uids) == 2 && slices.Equal(found, uids), "found %v of %v", found, uids)
}

// TestDataDirs checks that machines are found wherever purge is run, and without QEMU.
func TestDataDirs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.json")
	t.Chdir(dir)
	o := options("")
	*o.Settings["qemu"].DataDir() = "machines"
	_, err := Choose(t.Context(), file, "qemu", nil, o)
	assert.NoError(t, err)
	t.Chdir(t.TempDir())
	dirs, err := DataDirs(file, "qemu")
	assert.True(t, err == nil && slices.Equal(dirs, []string{filepath.Join(dir, "machines")}), "the folders are %q, %v", dirs, err)
	opened := again(t, file)
	assert.Require(t, len(opened) == 1 && opened[0].Engine.Driver == "qemu", "opened %v", opened)
	servers, err := opened[0].Driver.List(t.Context())
	assert.True(t, err == nil && len(servers) == 0, "it lists %v, %v", servers, err)
}

func makeServer(t *testing.T, d driver.Driver, uid types.UID) {
	t.Helper()
	_, err := d.Ensure(t.Context(), driver.ServerSpec{
		Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: "vm",
		Power: driver.PowerOn, CPUMilli: 1000, MemoryBytes: 1 << 30, RestartPolicy: driver.RestartAlways,
	})
	assert.NoError(t, err)
}

func TestReopenOfAnInstallationThatRanNone(t *testing.T) {
	opened := again(t, filepath.Join(t.TempDir(), "engines.json"))
	assert.True(t, len(opened) == 0, "opened %v", opened)
}

func TestADamagedFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engines.json")
	assert.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err := Reopen(t.Context(), file, nil, options(""))
	assert.ErrorSays(t, "a damaged file", err, file+" is damaged")
}

// TestChooseSaysWhichEngineDoesNotAnswer checks that a driver that was named is chosen, and why its engine does not
// answer.
func TestChooseSaysWhichEngineDoesNotAnswer(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix://"+filepath.Join(t.TempDir(), "none.sock"))
	var lines []string
	o := options(t.TempDir())
	o.Log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	names, err := Choose(t.Context(), filepath.Join(t.TempDir(), "engines.json"), "docker,fake", nil, o)
	assert.NoError(t, err)
	assert.True(t, slices.Equal(names, []string{"docker", "fake"}) && len(lines) == 1 && strings.Contains(lines[0], "none.sock is unreachable"),
		"chose %q and said %q, want both and one line that names the socket", names, lines)
}

func TestChooseNamesAnUnknownDriver(t *testing.T) {
	_, err := Choose(t.Context(), filepath.Join(t.TempDir(), "engines.json"), "fake,vmware", nil, options(t.TempDir()))
	assert.ErrorSays(t, "an unknown driver", err, `"vmware" is not a driver`)
}

// TestBoundEngines checks that an engine that did not answer gets its id from the VMs bound to
// it, and stays recorded without, since it may have servers of deleted VMs.
func TestBoundEngines(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.json")
	before := []Engine{{Driver: "docker"}, {Driver: "fake", Dir: filepath.Join(dir, "old"), ID: "old"}}
	content, err := json.Marshal(before)
	assert.NoError(t, errors.Join(err, os.WriteFile(file, content, 0o600)))
	bound := []api.Binding{{Driver: "docker", EngineID: "A"}, {Driver: "fake", EngineID: "F"}, {Driver: "docker", EngineID: "B"}}
	_, err = Choose(t.Context(), file, "fake", bound, options(filepath.Join(dir, "new")))
	assert.NoError(t, err)
	known, err := Known(file)
	id, _ := registry.IdentifyDataDir("fake", filepath.Join(dir, "new"))
	want := append(slices.Clone(before), Engine{Driver: "docker", ID: "A"}, Engine{Driver: "docker", ID: "B"}, Engine{Driver: "fake", Dir: filepath.Join(dir, "new"), ID: id})
	assert.True(t, err == nil && id != "" && slices.Equal(known, want), "got %+v, %v, want %+v", known, err, want)
}

// TestReopenOfAnotherFolder checks that a folder that is not mounted, or was replaced by
// another, proves nothing about servers, and is not created.
func TestReopenOfAnotherFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "servers")
	file := filepath.Join(t.TempDir(), "engines.json")
	choose(t, file, dir)
	assert.NoError(t, os.Rename(dir, dir+".away"))
	assert.ErrorSays(t, "without the folder", assert.ErrorOf(Reopen(t.Context(), file, nil, options(""))), "cannot be asked for its servers")
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
	choose(t, filepath.Join(t.TempDir(), "engines.json"), dir)
	assert.ErrorSays(t, "of another", assert.ErrorOf(Reopen(t.Context(), file, nil, options(""))), "another engine in its place")
	assert.ErrorSays(t, "without one that is not known", assert.ErrorOf(Reopen(t.Context(), file, []string{"fake/none"}, options(""))), "fake/none is not an engine")
	known, err := loadEngines(file)
	assert.NoError(t, err)
	opened, err := Reopen(t.Context(), file, []string{known[0].String()}, options(""))
	assert.True(t, err == nil && len(opened) == 0, "without it: %v, %v", opened, err)
}

// TestSurvey checks that each engine is identified by its id, that one which does not answer
// hides no other, and that none is made.
func TestSurvey(t *testing.T) {
	t.Parallel()
	dir, other, gone := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "gone")
	ids := map[string]string{}
	for _, path := range []string{dir, other} {
		d, err := fake.New(fake.Options{ClusterID: "cluster-1", Dir: path})
		assert.NoError(t, err)
		ids[path], err = d.EngineID(t.Context())
		assert.NoError(t, err)
		_, err = d.Ensure(t.Context(), driver.ServerSpec{
			Target: driver.Target{UID: uuid.NewUUID(), Epoch: 1}, Namespace: "default", Name: "vm", Power: driver.PowerOn,
			RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 1 << 20,
		})
		assert.NoError(t, err)
	}
	known := []Engine{
		{Driver: "fake", Dir: dir}, // an engine that did not answer at first
		{Driver: "fake", Dir: dir, ID: ids[dir]},
		{Driver: "fake", Dir: other, ID: "another"},
		{Driver: "fake", Dir: gone, ID: "gone"},
	}
	file := filepath.Join(t.TempDir(), "engines.json")
	content, err := json.Marshal(known)
	assert.NoError(t, errors.Join(err, os.WriteFile(file, content, 0o600)))
	all, err := Survey(t.Context(), file, driver.Environment{ClusterID: "cluster-1", Clock: clock.RealClock{}, Log: logr.Discard()})
	assert.NoError(t, err)
	var got []string
	for _, s := range all {
		got = append(got, fmt.Sprintf("%s %d servers, another %t, gone %t", s.ID, len(s.Servers), errors.Is(s.Err, ErrAnotherEngine), s.IsGone()))
	}
	want := []string{ids[dir] + " 1 servers, another false, gone false", "another 0 servers, another true, gone false", "gone 0 servers, another false, gone true"}
	assert.True(t, slices.Equal(got, want), "got %q, want %q", got, want)
	assert.ErrorIs(t, "a folder that is gone", assert.ErrorOf(os.Stat(gone)), os.ErrNotExist)
}

// TestSurveyOfNothing checks that an installation that has used no engine does not have servers, and
// that a damaged record is an error.
func TestSurveyOfNothing(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "engines.json")
	all, err := Survey(t.Context(), file, driver.Environment{})
	assert.True(t, len(all) == 0 && err == nil, "got %+v, %v", all, err)
	assert.NoError(t, os.WriteFile(file, []byte("{"), 0o600))
	_, err = Survey(t.Context(), file, driver.Environment{})
	assert.True(t, err != nil, "a damaged record passes for none")
}
