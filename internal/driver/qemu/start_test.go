// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
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

	ports, memory := spec, spec
	ports.Ports = append(ports.Ports, driver.Port{Name: "web", Port: 81, HostPort: taken(t)})
	refuses(t, d, ports, driver.ErrRetry, "ports[1] (web)", driver.ReasonPortConflict)
	memory.MemoryBytes = maxMemory
	refuses(t, d, memory, driver.ErrExhausted, "resource.memory")
	if all, err := d.List(t.Context()); err != nil || len(all) != 1 || all[0].Run != first.Run || all[0].State != driver.StateRunning {
		t.Errorf("listed: %+v, %v, want it to run on", all, err)
	}
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
	if fetched["/boot-A0.img"] != 1 || fetched["/boot-B0.img"] != 1 {
		t.Errorf("it was fetched so many times: %v", fetched)
	}
}
