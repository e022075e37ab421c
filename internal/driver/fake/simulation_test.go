// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newTimedSimulation returns a simulation in which every step takes time. All its names
// are new.
func newTimedSimulation() simulation {
	n := 0
	return simulation{bootTime: 10 * time.Second, shutdownTime: 5 * time.Second, newName: func() string {
		n++
		return "new" + strconv.Itoa(n)
	}}
}

func newInstantSimulation() simulation {
	s := newTimedSimulation()
	s.bootTime, s.shutdownTime = 0, 0
	return s
}

func newSpec(power driver.Power) driver.ServerSpec {
	return driver.ServerSpec{
		Power: power, StopBy: now.Add(time.Minute), CPUMilli: 2000, MemoryBytes: 4e9,
		Image: driver.Image{Source: "image"},
	}
}

// newTestRecord returns a server with the size and the image that wanted requests.
func newTestRecord(state driver.State) Record {
	r := Record{
		UID: "uid", State: state, Run: "old", StartedAt: now.Add(-time.Hour), UpAt: now.Add(-time.Hour),
		CPUMilli: 2000, MemoryBytes: 4e9, ServerConfig: configOf(newSpec(driver.PowerOn)),
	}
	switch state {
	case driver.StateStopping:
		r.StopsAt = now.Add(time.Second)
	case driver.StateStopped:
		endRun(&r, 0, now.Add(-time.Minute))
	default:
	}
	return r
}

func changed[T any](v T, f func(*T)) T {
	f(&v)
	return v
}

func TestApplySpec(t *testing.T) {
	endOld := func(s *driver.ServerSpec) { s.RestartRun = "old" }
	tooLate := func(s *driver.ServerSpec) { s.StopBy = now }
	ignores := func(r *Record) { r.IgnoreShutdown = true }
	for name, c := range map[string]struct {
		simulation simulation
		record     Record
		spec       driver.ServerSpec
		state      driver.State
		run        string
		exit       int // -1: none
	}{
		"start":                    {newTimedSimulation(), newTestRecord(driver.StateStopped), newSpec(driver.PowerOn), driver.StateStarting, "run-new1", -1},
		"start at once":            {newInstantSimulation(), newTestRecord(driver.StateStopped), newSpec(driver.PowerOn), driver.StateRunning, "run-new1", -1},
		"start paused":             {newTimedSimulation(), newTestRecord(driver.StateStopped), newSpec(driver.PowerPaused), driver.StatePaused, "run-new1", -1},
		"leave running":            {newTimedSimulation(), newTestRecord(driver.StateRunning), newSpec(driver.PowerOn), driver.StateRunning, "old", -1},
		"leave stopped":            {newTimedSimulation(), newTestRecord(driver.StateStopped), newSpec(driver.PowerOff), driver.StateStopped, "old", 0},
		"leave restarting":         {newTimedSimulation(), newTestRecord(driver.StateRestarting), newSpec(driver.PowerOn), driver.StateRestarting, "old", -1},
		"pause":                    {newTimedSimulation(), newTestRecord(driver.StateRunning), newSpec(driver.PowerPaused), driver.StatePaused, "old", -1},
		"resume":                   {newTimedSimulation(), newTestRecord(driver.StatePaused), newSpec(driver.PowerOn), driver.StateRunning, "old", -1},
		"request to stop":          {newTimedSimulation(), newTestRecord(driver.StateRunning), newSpec(driver.PowerOff), driver.StateStopping, "old", -1},
		"stop at once":             {newInstantSimulation(), newTestRecord(driver.StateRunning), newSpec(driver.PowerOff), driver.StateStopped, "old", 0},
		"stop while paused":        {newTimedSimulation(), newTestRecord(driver.StatePaused), newSpec(driver.PowerOff), driver.StateStopping, "old", -1},
		"stop with no time":        {newTimedSimulation(), newTestRecord(driver.StateRunning), changed(newSpec(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"wait for a stop":          {newTimedSimulation(), newTestRecord(driver.StateStopping), newSpec(driver.PowerOff), driver.StateStopping, "old", -1},
		"force a stop":             {newTimedSimulation(), newTestRecord(driver.StateStopping), changed(newSpec(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"do not force without end": {newTimedSimulation(), newTestRecord(driver.StateStopping), changed(newSpec(driver.PowerOff), func(s *driver.ServerSpec) { s.StopBy = time.Time{} }), driver.StateStopping, "old", -1},
		"ignored":                  {newInstantSimulation(), changed(newTestRecord(driver.StateRunning), ignores), newSpec(driver.PowerOff), driver.StateStopping, "old", -1},
		"ignored and forced":       {newInstantSimulation(), changed(newTestRecord(driver.StateRunning), ignores), changed(newSpec(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"start while stopping":     {newTimedSimulation(), newTestRecord(driver.StateStopping), newSpec(driver.PowerOn), driver.StateStopping, "old", -1},
		"start after a stop":       {newTimedSimulation(), changed(newTestRecord(driver.StateStopping), func(r *Record) { r.StopsAt = now }), newSpec(driver.PowerOn), driver.StateStarting, "run-new1", -1},
		"start after a forced one": {newTimedSimulation(), newTestRecord(driver.StateStopping), changed(newSpec(driver.PowerOn), tooLate), driver.StateStarting, "run-new1", -1},
		"end a run":                {newTimedSimulation(), newTestRecord(driver.StateRunning), changed(newSpec(driver.PowerOn), endOld), driver.StateStopping, "old", -1},
		"end a run at once":        {newInstantSimulation(), newTestRecord(driver.StateRunning), changed(newSpec(driver.PowerOn), endOld), driver.StateRunning, "run-new1", -1},
		"end a paused run":         {newInstantSimulation(), newTestRecord(driver.StatePaused), changed(newSpec(driver.PowerPaused), endOld), driver.StatePaused, "run-new1", -1},
		"end a run that is over":   {newInstantSimulation(), newTestRecord(driver.StateStopped), changed(newSpec(driver.PowerOn), endOld), driver.StateRunning, "run-new1", -1},
		"end another run":          {newInstantSimulation(), newTestRecord(driver.StateRunning), changed(newSpec(driver.PowerOn), func(s *driver.ServerSpec) { s.RestartRun = "older" }), driver.StateRunning, "old", -1},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.simulation.applySpec(c.record, c.spec, now)
			s := serverOf(r, now)
			exit := -1
			if s.Exit != nil {
				exit = s.Exit.Code
			}
			assert.True(t, s.State == c.state && s.Run == c.run && exit == c.exit,
				"got %s, run %s, exit %d; want %s, %s, %d", s.State, s.Run, exit, c.state, c.run, c.exit)
			again := c.simulation.applySpec(r, c.spec, now)
			assert.True(t, again.State == r.State && again.Run == r.Run, "done twice it is %s, run %s, after %s, run %s", again.State, again.Run, r.State, r.Run)
		})
	}
}

// TestPending checks that a change that waits for a restart is listed, and applied
// after it.
func TestPending(t *testing.T) {
	for field, edit := range map[string]func(*driver.ServerSpec){
		"image":             func(s *driver.ServerSpec) { s.Image.Source = "other" },
		"volumes":           func(s *driver.ServerSpec) { s.Volumes = []driver.Volume{{Name: "v", SizeBytes: 1}} },
		"ports":             func(s *driver.ServerSpec) { s.Ports = []driver.Port{{Name: "p", Port: 80}} },
		"sshAuthorizedKeys": func(s *driver.ServerSpec) { s.SSHKeys = []string{"key"} },
		"userData":          func(s *driver.ServerSpec) { s.UserData = driver.NewSecret("x") },
		"networkData":       func(s *driver.ServerSpec) { s.NetworkData = driver.NewSecret("x") },
	} {
		t.Run(field, func(t *testing.T) {
			spec := changed(newSpec(driver.PowerOn), edit)
			running := newInstantSimulation().applySpec(newTestRecord(driver.StateRunning), spec, now)
			got := pendingOf(running, spec)
			assert.True(t, slices.Equal(got, []string{field}), "while it runs %v waits, want %s", got, field)
			restart := changed(spec, func(s *driver.ServerSpec) { s.RestartRun = "old" })
			got = pendingOf(newInstantSimulation().applySpec(running, restart, now), spec)
			assert.True(t, len(got) == 0, "after the restart %v waits", got)
			off := changed(spec, func(s *driver.ServerSpec) { s.Power = driver.PowerOff })
			got = pendingOf(newInstantSimulation().applySpec(running, off, now), spec)
			assert.True(t, len(got) == 0, "while it is off %v waits", got)
		})
	}
	got := pendingOf(newTestRecord(driver.StateRunning), newSpec(driver.PowerOn))
	assert.True(t, len(got) == 0, "without a change %v waits", got)
	kernel := changed(newSpec(driver.PowerOn), func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: "k"} })
	got = pendingOf(newTestRecord(driver.StateRunning), kernel)
	assert.True(t, slices.Equal(got, []string{"image"}), "with another kernel %v waits, want image", got)
}

func TestResizeIsLive(t *testing.T) {
	spec := changed(newSpec(driver.PowerOn), func(s *driver.ServerSpec) { s.CPUMilli, s.MemoryBytes, s.RootDiskBytes = 500, 1e9, 2e9 })
	s := serverOf(newTimedSimulation().applySpec(newTestRecord(driver.StateRunning), spec, now), now)
	want := (driver.Resources{CPUMilli: 500, MemoryBytes: 1e9, RootDiskBytes: 2e9})
	assert.True(t, s.Applied == want && s.Run == "old", "got %+v in run %s, want %+v in the same run", s.Applied, s.Run, want)
	spec.RootDiskBytes = 0
	assert.Equal(t, "a spec without a size changed the disk to", newTimedSimulation().applySpec(Record{RootDiskBytes: 5}, spec, now).RootDiskBytes, 5)
}

func TestAddresses(t *testing.T) {
	on, off := serverOf(newTestRecord(driver.StateRunning), now), serverOf(newTestRecord(driver.StateStopped), now)
	assert.True(t, len(on.Addresses) == 1 && on.Addresses[0] == addressOf("uid") && on.Addresses[0] != addressOf("other"),
		"got %v, want the one of its UID", on.Addresses)
	assert.True(t, len(off.Addresses) == 0, "a server that is off has %v", off.Addresses)
}

// TestHostIP checks that the address is stored and reported while the server runs, and
// that another one waits for a restart.
func TestHostIP(t *testing.T) {
	spec := changed(newSpec(driver.PowerOn), func(s *driver.ServerSpec) {
		s.Ports = []driver.Port{{Name: "a", Port: 80, HostPort: 8080, HostIP: "127.0.0.1"}, {Name: "b", Port: 81}}
	})
	running := newInstantSimulation().applySpec(newTestRecord(driver.StateStopped), spec, now)
	want := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: 8080, HostIP: "127.0.0.1"}}
	got := serverOf(running, now).Ports
	assert.True(t, slices.Equal(got, want), "it is reached by %+v", got)
	moved := changed(spec, func(s *driver.ServerSpec) {
		s.Ports = []driver.Port{{Name: "a", Port: 80, HostPort: 8080}, {Name: "b", Port: 81}}
	})
	if got := pendingOf(running, moved); !slices.Equal(got, []string{"ports"}) {
		t.Errorf("%v waits", got)
	}
}

// TestListIsCancellable checks that a list can be cancelled: in a folder of
// thousands it takes seconds on a busy host, and must not delay a controller that stops.
func TestListIsCancellable(t *testing.T) {
	t.Parallel()
	store, err := openDirStore(t.TempDir())
	assert.NoError(t, err)
	assert.NoError(t, store.dir.Create(store.dir.Path("5b3d1a0e-0000-4000-8000-000000000001"+fileSuffix), []byte("{}")))
	ctx, cancel := context.WithCancel(t.Context())
	all, err := store.listRecords(ctx)
	assert.Require(t, err == nil && len(all) == 1, "list: %v, %v", all, err)
	cancel()
	all, err = store.listRecords(ctx)
	assert.True(t, errors.Is(err, context.Canceled), "list of a context that has ended: %v, %v", all, err)
}
