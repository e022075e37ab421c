// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/doctor"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/standalone/internal/runstate"
	"cloudnative.tw/drover/test/assert"
)

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// TestPrint checks what people see, within 80 columns.
func TestPrint(t *testing.T) {
	t.Parallel()
	two := 2
	warned := findings.Warning("no time service").Means("not shown").FixedByCommand("not shown")
	warned.Name, warned.Group = "clock", "Host"
	full := &Status{
		State: StateReady, Version: "v1", PID: 42, StartedAt: now.Add(-2 * time.Hour), DataDir: "/data",
		Disk:   &Disk{FreeBytes: 60 << 30, TotalBytes: 251 << 30},
		API:    &API{URL: "https://127.0.0.1:6443", Version: "v1.36.3"},
		Leader: &Leader{Identity: "drover_up_x", RenewedAt: now.Add(-5 * time.Second)},
		VMs:    &VMs{Total: 4, Phases: map[string]int{"Active": 3, "": 1}},
		Drivers: []Driver{
			{Driver: "docker", EngineID: "3f6c8a52-8e1b-4f9a-a2c5-2f0b8a1c9d10", Version: "28.2.2", IsDefault: true, Servers: 3, Running: 2, Orphans: &two, Retained: 1},
			{Driver: "qemu", Error: "its folder is gone"},
		},
		Warnings: []findings.Finding{warned},
	}
	for want, s := range map[string]*Status{
		`Drover v1 runs (process 42, for 120m)
  data dir   /data
  disk       60 GiB free of 251 GiB
  API        https://127.0.0.1:6443 (Kubernetes v1.36.3)
  leader     drover_up_x, renewed 5s ago
  VMs        1 not observed yet, 3 Active

DRIVER   ENGINE          VERSION   STATE       RUNNING   ORPHANS   RETAINED
docker   3f6c8a52-8e1b   28.2.2    default     2/3       2         1
qemu     unknown         -         no answer   ?         ?         ?

Warnings
  warning  clock  no time service
  warning  qemu   its folder is gone
`: full,
		"Drover has not run here: there is no data dir /data\n":                             {State: StateAbsent, DataDir: "/data"},
		"Drover v1 is stopped, since 60s ago\n  data dir   /data\n":                         {State: StateStopped, Version: "v1", DataDir: "/data", StartedAt: now.Add(-time.Hour), EndedAt: now.Add(-time.Minute)},
		"Drover v1 is stopped: it ended 60s ago, since no disk\n  data dir   /data\n":       {State: StateStopped, Version: "v1", DataDir: "/data", EndedAt: now.Add(-time.Minute), Failure: "no disk"},
		"Drover v1 is stopped: it was killed, or the host went down\n  data dir   /data\n":  {State: StateStopped, Version: "v1", DataDir: "/data", StartedAt: now.Add(-time.Hour)},
		"Drover is stopped\n  data dir   /data\n":                                           {State: StateStopped, DataDir: "/data"},
		"Drover v1 is starting (process 42, for 1s)\n  data dir   /data\n":                  {State: StateStarting, Version: "v1", PID: 42, StartedAt: now.Add(-time.Second), DataDir: "/data"},
		"Drover runs (process 42)\n  data dir   /data\n  API        https://a:1: refused\n": {State: StateReady, PID: 42, DataDir: "/data", API: &API{URL: "https://a:1", Error: "refused"}},
	} {
		var out bytes.Buffer
		err := s.Print(&out, now, findings.Style{Width: 80})
		assert.True(t, err == nil && out.String() == want, "got\n%s, %v, want\n%s", out.String(), err, want)
		for line := range strings.Lines(out.String()) {
			assert.True(t, len(line) <= 81, "%q has %d columns", line, len(line)-1)
		}
	}
}

// printOfOthers returns what a terminal gets of a status that has a text wherever others may have a say.
func printOfOthers(t *testing.T, text string) string {
	t.Helper()
	s := &Status{
		State: StateReady, Version: text, DataDir: "/data" + text, API: &API{URL: text, Error: text},
		Leader: &Leader{Identity: text}, VMs: &VMs{Total: 1, Phases: map[string]int{text: 1}},
		Drivers:  []Driver{{Driver: text, EngineID: text, Version: text, Error: text}},
		Warnings: []findings.Finding{{Level: findings.LevelWarning, Name: text, Group: text, Observed: text}},
	}
	var raw bytes.Buffer
	assert.NoError(t, s.Print(printable.NewWriter(&raw), now, findings.Style{Width: 80, Color: true}))
	return raw.String()
}

// TestPrintOfOthers checks that a terminal finds nothing to obey in texts from files of other users, and
// from servers and engines, and that it gets the lines and the colors of any other status.
func TestPrintOfOthers(t *testing.T) {
	t.Parallel()
	got, plain := printOfOthers(t, "x\x1b]0;a\x07\u202e\u009b31m\n"), printOfOthers(t, "x")
	for line := range strings.Lines(got) {
		for part := range strings.SplitSeq(strings.TrimSuffix(line, "\n"), "\x1b[") {
			assert.True(t, printable.Line(part) == part, "a terminal gets %q", line)
		}
	}
	for _, one := range []string{"\n", "\x1b["} {
		n, want := strings.Count(got, one), strings.Count(plain, one)
		assert.True(t, n == want && n != 0, "a terminal gets %d times %q, want %d:\n%q", n, one, want, got)
	}
	assert.True(t, !strings.Contains(got, "\x1b]"), "a terminal gets %q", got)
}

// TestDrivers checks the numbers, and that an engine whose servers cannot all be judged
// shows no number of orphans.
func TestDrivers(t *testing.T) {
	t.Parallel()
	none, one := 0, 1
	wanted := []Driver{
		{Driver: "docker", EngineID: "D", Version: "28", IsDefault: true, Servers: 4, Running: 2, Orphans: &one, Retained: 1},
		{Driver: "qemu", EngineID: "gone", Error: "away"},
		{Driver: "fake", EngineID: "old", IsOff: true, Orphans: &none},
	}
	surveyed := []engines.Surveyed{
		{Engine: engines.Engine{Driver: "fake", ID: "old"}},
		{Engine: engines.Engine{Driver: "qemu", ID: "gone"}, Err: errors.New("away")},
		{Engine: engines.Engine{Driver: "docker", ID: "D"}, Survey: driver.Survey{EngineID: "D", Version: "28", Servers: []driver.Server{
			{UID: "owned", ID: "1", State: driver.StateRunning},
			{UID: "orphan", ID: "2", State: driver.StateStopped},
			{UID: "kept", ID: "3", State: driver.StateRunning, Retained: true},
			{UID: "unreadable", State: driver.StateRunning, Err: errors.New("repair it")},
			{UID: "fetched", State: driver.StatePending},
		}}},
	}
	s, h := &Status{}, &doctor.Host{PID: 42, State: &runstate.State{Drivers: []string{"docker", "qemu"}}}
	s.setDrivers(h, surveyed, map[types.UID]bool{"owned": true})
	assert.Require(t, len(s.Drivers) == len(wanted), "got %+v", s.Drivers)
	for i, d := range s.Drivers {
		assert.True(t, reflect.DeepEqual(d, wanted[i]), "got %+v, want %+v", d, wanted[i])
	}
	assert.Equal(t, "its state", s.Drivers[2].stateText(), "not in use")
	s = &Status{}
	s.setDrivers(h, surveyed, nil)
	d := s.Drivers[0]
	assert.True(t, d.Orphans == nil, "without the API: orphans are counted")
}

// gather reads the status as the command does.
func gather(t *testing.T, path string) *Status {
	t.Helper()
	h := doctor.NewHost(datadir.Layout(path), "v1", clock.RealClock{})
	s, err := Gather(t.Context(), h)
	assert.NoError(t, err)
	assert.ReportError(t, assert.ErrorOf(json.Marshal(s)))
	return s
}

// TestGather checks that nothing is made of an installation that is missing, and that one which has
// stopped is read without its API.
func TestGather(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	s := gather(t, path)
	assert.True(t, s.State == StateAbsent, "got %+v", s)
	assert.ErrorIs(t, "the data dir", assert.ErrorOf(os.Stat(path)), os.ErrNotExist)
	dir, err := datadir.Open(path)
	assert.NoError(t, err)
	r := runstate.NewRecorder("v0", clock.RealClock{}, dir.SetRunState)
	assert.NoError(t, errors.Join(dir.SetClusterID("c"), os.WriteFile(dir.Engines(), []byte(`[{"driver": "fake", "fakeDir": "/nowhere"}]`), 0o600)))
	r.SetDrivers([]string{"fake"})
	s = gather(t, path)
	assert.True(t, s.State == StateStarting && s.PID == os.Getpid() && s.Version == "v0" && s.API != nil && s.API.Error != "", "while it starts: %+v", s)
	r.End(errors.New("no disk"))
	assert.NoError(t, dir.Close())
	wantEnded(t, gather(t, path))
}

// wantEnded checks an installation that has ended after a failure.
func wantEnded(t *testing.T, s *Status) {
	t.Helper()
	assert.True(t, s.State == StateStopped && s.Failure == "no disk" && !s.EndedAt.IsZero() && s.API == nil && s.Disk != nil, "after its end: %+v", s)
	assert.True(t, len(s.Drivers) == 1 && s.Drivers[0].Error != "" && !s.Drivers[0].IsOff, "its drivers: %+v", s.Drivers)
}

// TestEarlierVersion checks that a drover which still runs and does not serve the usage of its
// store, as one that was started before an upgrade, has its leader and VMs in the status.
func TestEarlierVersion(t *testing.T) {
	t.Parallel()
	answers := map[string]string{
		"/version": `{"gitVersion": "v1.36.0"}`,
		"/readyz":  "ok",
		"/apis/coordination.k8s.io/v1/namespaces/default/leases/drover-controller": `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {"holderIdentity": "me"}}`,
		"/api":                          `{"kind": "APIVersions", "versions": ["v1"]}`,
		"/apis":                         `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "cloudnative.tw", "versions": [{"groupVersion": "cloudnative.tw/v1alpha1", "version": "v1alpha1"}]}]}`,
		"/apis/cloudnative.tw/v1alpha1": `{"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "cloudnative.tw/v1alpha1", "resources": [{"name": "virtualmachines", "kind": "VirtualMachine", "namespaced": true, "verbs": ["list"]}]}`,
		"/apis/cloudnative.tw/v1alpha1/virtualmachines": `{"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachineList", "items": [{"apiVersion": "cloudnative.tw/v1alpha1", "kind": "VirtualMachine", "metadata": {"uid": "u"}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(answer))
	}))
	t.Cleanup(server.Close)
	s := &Status{API: &API{}}
	owners, err := s.askAPI(t.Context(), &doctor.Host{}, &rest.Config{Host: server.URL})
	assert.NoError(t, err)
	assert.True(t, s.Store == nil && s.Leader != nil && s.VMs != nil && owners["u"], "got %+v and the owners %v", s, owners)
}
