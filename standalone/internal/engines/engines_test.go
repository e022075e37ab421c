// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engines

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/table"
)

const cluster = "cluster-1"

func options(fakeDir string) table.Options {
	settings := table.DefaultSettings()
	settings.FakeDir = fakeDir
	return table.Options{Settings: settings, ClusterID: cluster, Clock: clock.RealClock{}, Log: logr.Discard()}
}

func choose(t *testing.T, file, list, fakeDir string) []string {
	t.Helper()
	names, _, err := Choose(t.Context(), file, list, options(fakeDir))
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func reopen(t *testing.T, file string) []table.Opened {
	t.Helper()
	opened, err := Reopen(t.Context(), file, cluster, clock.RealClock{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	return opened
}

// Servers in every folder that was ever used must be found again.
func TestReopenFindsTheServersOfEarlierRuns(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.json")
	for _, folder := range []string{"one", "two", "one"} {
		if names := choose(t, file, "fake", filepath.Join(dir, folder)); !slices.Equal(names, []string{"fake"}) {
			t.Errorf("chose %v", names)
		}
	}
	var uids []types.UID
	for i, opened := range reopen(t, file) {
		uid := types.UID([]string{"11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"}[i])
		makeServer(t, opened.Driver, uid)
		uids = append(uids, uid)
	}
	var found []types.UID
	for _, opened := range reopen(t, file) {
		servers, err := opened.Driver.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range servers {
			found = append(found, s.UID)
		}
	}
	if len(uids) != 2 || !slices.Equal(found, uids) {
		t.Errorf("found %v of %v", found, uids)
	}
}

// TestQEMUDirs : machines are found wherever purge is run, and without QEMU.
func TestQEMUDirs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "engines.json")
	t.Chdir(dir)
	o := options("")
	o.QEMUDir = "machines"
	if _, _, err := Choose(t.Context(), file, "qemu", o); err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if dirs, err := QEMUDirs(file); err != nil || !slices.Equal(dirs, []string{filepath.Join(dir, "machines")}) {
		t.Errorf("the folders are %q, %v", dirs, err)
	}
	opened := reopen(t, file)
	if len(opened) != 1 || opened[0].Name != "qemu" {
		t.Fatalf("opened %v", opened)
	}
	if servers, err := opened[0].Driver.List(t.Context()); err != nil || len(servers) != 0 {
		t.Errorf("it lists %v, %v", servers, err)
	}
}

func makeServer(t *testing.T, d driver.Driver, uid types.UID) {
	t.Helper()
	_, err := d.Ensure(t.Context(), driver.ServerSpec{
		Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: "vm",
		Power: driver.PowerOn, CPUMilli: 1000, MemoryBytes: 1 << 30, RestartPolicy: driver.RestartAlways,
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestReopenOfAnInstallationThatRanNone(t *testing.T) {
	if opened := reopen(t, filepath.Join(t.TempDir(), "engines.json")); len(opened) > 0 {
		t.Errorf("opened %v", opened)
	}
}

func TestADamagedFileIsNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "engines.json")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Reopen(t.Context(), file, cluster, clock.RealClock{}, logr.Discard())
	if err == nil || !strings.Contains(err.Error(), file+" is damaged") {
		t.Errorf("got %v", err)
	}
}

func TestChooseNamesAnUnknownDriver(t *testing.T) {
	_, _, err := Choose(t.Context(), filepath.Join(t.TempDir(), "engines.json"), "fake,vmware", options(t.TempDir()))
	if err == nil || !strings.Contains(err.Error(), `"vmware" is not a driver`) {
		t.Errorf("got %v", err)
	}
}

// TestOthers : servers of another installation on the same engine are told of.
func TestOthers(t *testing.T) {
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "engines.json")
	theirs := options(dir)
	theirs.ClusterID, theirs.Registerer = "cluster-2", prometheus.NewRegistry()
	opened, err := table.Open(t.Context(), "fake", theirs)
	if err != nil {
		t.Fatal(err)
	}
	spec := driver.ServerSpec{Target: driver.Target{UID: "uid-1"}, Power: driver.PowerOn, CPUMilli: 1000, MemoryBytes: 1e9}
	if _, err := opened[0].Driver.Ensure(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	_, others, err := Choose(t.Context(), file, "fake", options(dir))
	if err != nil || len(others) != 1 || !strings.Contains(others[0], "another Drover installation (cluster cluster-2): 1, left alone") {
		t.Errorf("others %q, %v", others, err)
	}
}
