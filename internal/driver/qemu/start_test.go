// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestRestartThatCannotBe checks that a guest is not shut down for a run that cannot
// begin.
func TestRestartThatCannotBe(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Ports = []driver.Port{{Name: "own", Port: 80}}
	first := reach(t, d, spec, driver.StateRunning)
	spec.Ports[0].HostPort = first.Ports[0].HostPort
	spec.RestartRun, spec.StopBy = first.Run, time.Now()

	ports, memory, fields := spec, spec, spec
	ports.Ports = append(ports.Ports, driver.Port{Name: "web", Port: 81, HostPort: taken(t)})
	refuses(t, d, ports, driver.ErrRetry, "ports[1] (web)", driver.ReasonPortConflict)
	memory.MemoryBytes = maxMemory
	refuses(t, d, memory, driver.ErrExhausted, "resource.memory")
	fields.Command = []string{"/bin/app"}
	refuses(t, d, fields, driver.ErrUnsupported, "spec.command")
	all, err := d.List(t.Context())
	assert.True(t, err == nil && len(all) == 1 && all[0].Run == first.Run && all[0].State == driver.StateRunning, "listed: %+v, %v, want it to run on", all, err)
	reach(t, d, spec, driver.StateRunning) // with the port that it has
}

// TestFetchedOnce checks that what was fetched is used by the start that it is for,
// however many attempts that takes.
func TestFetchedOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	var mu sync.Mutex
	fetched := map[string]int{}
	files := http.FileServer(http.Dir(e.images))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		fetched[r.URL.Path]++
		mu.Unlock()
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL + "/boot-A0.img", PullPolicy: driver.PullAlways}
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: web.URL + "/boot-B0.img", PullPolicy: driver.PullAlways}}}
	tooLarge := spec
	tooLarge.MemoryBytes = maxMemory
	wantError(t, d.waitFor(t, tooLarge), driver.ErrExhausted)
	for range 3 {
		refuses(t, d, tooLarge, driver.ErrExhausted)
	}
	reach(t, d, spec, driver.StateRunning)
	assert.True(t, fetched["/boot-A0.img"] == 1 && fetched["/boot-B0.img"] == 1, "it was fetched so many times: %v", fetched)
}

// TestStartIsPreparedOnce checks that a call which has created a server does not look for its images again before the
// first start, and that every other start does.
func TestStartIsPreparedOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d, web, spec := e.openUnchecked(t), e.web(t), e.spec()
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: web + "/boot-B0.img"}}}
	lock, err := beginChange(t.Context(), d.Host, spec.Target)
	assert.NoError(t, err)
	defer lock.Release()
	find := func() *convergence {
		c := &convergence{driver: d, host: d.Host, spec: spec, inst: d.Host.InstanceOf(spec.UID)}
		assert.Eventually(t, "the server is there", func(testing.TB) error { return c.findOrCreate(t.Context()) })
		return c
	}
	prepare := func(c *convergence) error {
		waits, err := c.prepareStart(t.Context())
		if waits {
			return errFetching
		}
		return err
	}
	first, next := find(), find()
	path, _ := d.Host.Images.Path(disks.RefOf(*spec.Volumes[0].Image))
	assert.NoError(t, os.Remove(path))
	assert.NoError(t, prepare(first))
	assert.ErrorIs(t, "a later call", prepare(next), errFetching)
	assert.Eventually(t, "the image is fetched again", func(testing.TB) error { return prepare(next) })
	assert.NoError(t, assert.ErrorOf(first.startServer(t.Context())))
	assert.True(t, !first.isPrepared, "the start after the first counts as prepared")
}

// TestStopThatIsOver checks that a restart goes on where the guest, or its QEMU too, ended
// while it was stopped: else the caller would get a server that is off, and take the restart
// for one that has failed.
func TestStopThatIsOver(t *testing.T) {
	t.Parallel()
	off := &driver.Exit{Reason: "Completed"}
	for name, c := range map[string]struct {
		isOn bool
		exit *driver.Exit
		step step
		want bool
	}{
		"the guest shuts down":     {true, nil, stepStop, false},
		"the guest has ended":      {true, off, stepStop, true},
		"QEMU has quit":            {false, off, stepStop, true},
		"a start waits for images": {false, off, stepStart, false},
	} {
		inst := &instance.Instance{Exit: c.exit}
		inst.On = c.isOn
		assert.Equal(t, name, hasEndedDuring(c.step, inst), c.want)
	}
}

// TestJournal checks that the journal has the actions of leaders, each entry with its epoch,
// and the callers that the fence refused.
func TestJournal(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	path := filepath.Join(t.TempDir(), "journal")
	open := func() driver.Driver {
		d, err := journal.Wrap(e.open(t), path, "cluster-1", clock.RealClock{}, logr.Discard())
		assert.NoError(t, err)
		return d
	}
	d := open()
	spec := e.spec()
	spec.Epoch = 5
	reach(t, d, spec, driver.StateRunning)
	reach(t, open(), spec, driver.StateRunning) // nothing to do
	next := spec
	next.Epoch = 6
	next.Power = driver.PowerPaused
	reach(t, open(), next, driver.StatePaused)
	refuses(t, d, spec, driver.ErrFenced)
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrFenced)
	assert.NoError(t, d.Delete(t.Context(), next.Target, false))
	want := []string{"create 5", "start 5", "pause 6", "refused 5", "refused 5", "delete 6"}
	got := journalEntries(t, path)
	assert.True(t, slices.Equal(got, want), "the journal has %q, want %q", got, want)
}

func journalEntries(t *testing.T, path string) []string {
	t.Helper()
	content := framework.ReadFile(t, path)
	var all []string
	for line := range strings.Lines(content) {
		var e journal.Entry
		assert.NoError(t, json.Unmarshal([]byte(line), &e))
		assert.True(t, e.PID == os.Getpid() && e.Cluster == "cluster-1" && e.UID != "" && !e.At.IsZero(), "an entry is %+v", e)
		all = append(all, fmt.Sprintf("%s %d", e.Action, e.Epoch))
	}
	return all
}
