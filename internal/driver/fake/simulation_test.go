// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// inTime returns a simulation in which every step takes time. All its names are new.
func inTime() simulation {
	n := 0
	return simulation{bootTime: 10 * time.Second, shutdownTime: 5 * time.Second, newName: func() string {
		n++
		return "new" + strconv.Itoa(n)
	}}
}

func atOnce() simulation {
	s := inTime()
	s.bootTime, s.shutdownTime = 0, 0
	return s
}

func wanted(power driver.Power) driver.ServerSpec {
	return driver.ServerSpec{
		Power: power, StopBy: now.Add(time.Minute), CPUMilli: 2000, MemoryBytes: 4e9,
		Image: driver.Image{Source: "image"},
	}
}

// record returns a server with the size and the image that wanted requests.
func record(state driver.State) Record {
	r := Record{
		UID: "uid", State: state, Run: "old", StartedAt: now.Add(-time.Hour), UpAt: now.Add(-time.Hour),
		CPUMilli: 2000, MemoryBytes: 4e9, Config: configOf(wanted(driver.PowerOn)),
	}
	switch state {
	case driver.StateStopping:
		r.StopsAt = now.Add(time.Second)
	case driver.StateStopped:
		end(&r, 0, now.Add(-time.Minute))
	default:
	}
	return r
}

func change[T any](v T, f func(*T)) T {
	f(&v)
	return v
}

func TestEnsure(t *testing.T) {
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
		"start":                    {inTime(), record(driver.StateStopped), wanted(driver.PowerOn), driver.StateStarting, "run-new1", -1},
		"start at once":            {atOnce(), record(driver.StateStopped), wanted(driver.PowerOn), driver.StateRunning, "run-new1", -1},
		"start paused":             {inTime(), record(driver.StateStopped), wanted(driver.PowerPaused), driver.StatePaused, "run-new1", -1},
		"leave running":            {inTime(), record(driver.StateRunning), wanted(driver.PowerOn), driver.StateRunning, "old", -1},
		"leave stopped":            {inTime(), record(driver.StateStopped), wanted(driver.PowerOff), driver.StateStopped, "old", 0},
		"leave restarting":         {inTime(), record(driver.StateRestarting), wanted(driver.PowerOn), driver.StateRestarting, "old", -1},
		"pause":                    {inTime(), record(driver.StateRunning), wanted(driver.PowerPaused), driver.StatePaused, "old", -1},
		"resume":                   {inTime(), record(driver.StatePaused), wanted(driver.PowerOn), driver.StateRunning, "old", -1},
		"ask to stop":              {inTime(), record(driver.StateRunning), wanted(driver.PowerOff), driver.StateStopping, "old", -1},
		"stop at once":             {atOnce(), record(driver.StateRunning), wanted(driver.PowerOff), driver.StateStopped, "old", 0},
		"stop while paused":        {inTime(), record(driver.StatePaused), wanted(driver.PowerOff), driver.StateStopping, "old", -1},
		"stop with no time":        {inTime(), record(driver.StateRunning), change(wanted(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"wait for a stop":          {inTime(), record(driver.StateStopping), wanted(driver.PowerOff), driver.StateStopping, "old", -1},
		"force a stop":             {inTime(), record(driver.StateStopping), change(wanted(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"do not force without end": {inTime(), record(driver.StateStopping), change(wanted(driver.PowerOff), func(s *driver.ServerSpec) { s.StopBy = time.Time{} }), driver.StateStopping, "old", -1},
		"ignored":                  {atOnce(), change(record(driver.StateRunning), ignores), wanted(driver.PowerOff), driver.StateStopping, "old", -1},
		"ignored and forced":       {atOnce(), change(record(driver.StateRunning), ignores), change(wanted(driver.PowerOff), tooLate), driver.StateStopped, "old", forcedExit},
		"start while stopping":     {inTime(), record(driver.StateStopping), wanted(driver.PowerOn), driver.StateStopping, "old", -1},
		"start after a stop":       {inTime(), change(record(driver.StateStopping), func(r *Record) { r.StopsAt = now }), wanted(driver.PowerOn), driver.StateStarting, "run-new1", -1},
		"start after a forced one": {inTime(), record(driver.StateStopping), change(wanted(driver.PowerOn), tooLate), driver.StateStarting, "run-new1", -1},
		"end a run":                {inTime(), record(driver.StateRunning), change(wanted(driver.PowerOn), endOld), driver.StateStopping, "old", -1},
		"end a run at once":        {atOnce(), record(driver.StateRunning), change(wanted(driver.PowerOn), endOld), driver.StateRunning, "run-new1", -1},
		"end a paused run":         {atOnce(), record(driver.StatePaused), change(wanted(driver.PowerPaused), endOld), driver.StatePaused, "run-new1", -1},
		"end a run that is over":   {atOnce(), record(driver.StateStopped), change(wanted(driver.PowerOn), endOld), driver.StateRunning, "run-new1", -1},
		"end another run":          {atOnce(), record(driver.StateRunning), change(wanted(driver.PowerOn), func(s *driver.ServerSpec) { s.RestartRun = "older" }), driver.StateRunning, "old", -1},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.simulation.ensure(c.record, c.spec, now)
			s := serverOf(r, now)
			exit := -1
			if s.Exit != nil {
				exit = s.Exit.Code
			}
			if s.State != c.state || s.Run != c.run || exit != c.exit {
				t.Errorf("got %s, run %s, exit %d; want %s, %s, %d", s.State, s.Run, exit, c.state, c.run, c.exit)
			}
			if again := c.simulation.ensure(r, c.spec, now); again.State != r.State || again.Run != r.Run {
				t.Errorf("done twice it is %s, run %s, after %s, run %s", again.State, again.Run, r.State, r.Run)
			}
		})
	}
}

// TestPending checks that a change that waits for a restart is listed, and applied after it.
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
			spec := change(wanted(driver.PowerOn), edit)
			running := atOnce().ensure(record(driver.StateRunning), spec, now)
			if got := pendingOf(running, spec); !slices.Equal(got, []string{field}) {
				t.Errorf("while it runs %v waits, want %s", got, field)
			}
			restart := change(spec, func(s *driver.ServerSpec) { s.RestartRun = "old" })
			if got := pendingOf(atOnce().ensure(running, restart, now), spec); len(got) != 0 {
				t.Errorf("after the restart %v waits", got)
			}
			off := change(spec, func(s *driver.ServerSpec) { s.Power = driver.PowerOff })
			if got := pendingOf(atOnce().ensure(running, off, now), spec); len(got) != 0 {
				t.Errorf("while it is off %v waits", got)
			}
		})
	}
	if got := pendingOf(record(driver.StateRunning), wanted(driver.PowerOn)); len(got) != 0 {
		t.Errorf("without a change %v waits", got)
	}
	kernel := change(wanted(driver.PowerOn), func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: "k"} })
	if got := pendingOf(record(driver.StateRunning), kernel); !slices.Equal(got, []string{"image"}) {
		t.Errorf("with another kernel %v waits, want image", got)
	}
}

func TestResizeIsLive(t *testing.T) {
	spec := change(wanted(driver.PowerOn), func(s *driver.ServerSpec) { s.CPUMilli, s.MemoryBytes, s.RootDiskBytes = 500, 1e9, 2e9 })
	s := serverOf(inTime().ensure(record(driver.StateRunning), spec, now), now)
	if want := (driver.Resources{CPUMilli: 500, MemoryBytes: 1e9, RootDiskBytes: 2e9}); s.Applied != want || s.Run != "old" {
		t.Errorf("got %+v in run %s, want %+v in the same run", s.Applied, s.Run, want)
	}
	spec.RootDiskBytes = 0
	if r := inTime().ensure(Record{RootDiskBytes: 5}, spec, now); r.RootDiskBytes != 5 {
		t.Errorf("a spec without a size changed the disk to %d", r.RootDiskBytes)
	}
}

func TestAddresses(t *testing.T) {
	on, off := serverOf(record(driver.StateRunning), now), serverOf(record(driver.StateStopped), now)
	if len(on.Addresses) != 1 || on.Addresses[0] != addressOf("uid") || on.Addresses[0] == addressOf("other") {
		t.Errorf("got %v, want the one of its UID", on.Addresses)
	}
	if len(off.Addresses) != 0 {
		t.Errorf("a server that is off has %v", off.Addresses)
	}
}

// TestHostIP checks that the address is stored and reported while the server runs, and
// that another one waits for a restart.
func TestHostIP(t *testing.T) {
	spec := change(wanted(driver.PowerOn), func(s *driver.ServerSpec) {
		s.Ports = []driver.Port{{Name: "a", Port: 80, HostPort: 8080, HostIP: "127.0.0.1"}, {Name: "b", Port: 81}}
	})
	running := atOnce().ensure(record(driver.StateStopped), spec, now)
	want := []driver.Port{{Protocol: "TCP", Port: 80, HostPort: 8080, HostIP: "127.0.0.1"}}
	if got := serverOf(running, now).Ports; !slices.Equal(got, want) {
		t.Errorf("it is reached by %+v", got)
	}
	moved := change(spec, func(s *driver.ServerSpec) {
		s.Ports = []driver.Port{{Name: "a", Port: 80, HostPort: 8080}, {Name: "b", Port: 81}}
	})
	if got := pendingOf(running, moved); !slices.Equal(got, []string{"ports"}) {
		t.Errorf("%v waits", got)
	}
}
