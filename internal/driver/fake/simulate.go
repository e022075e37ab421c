// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// forcedExit is the code of a run that was ended by force.
const forcedExit = 137

// simulation is the configured durations, and the source of names.
type simulation struct {
	bootTime, shutdownTime time.Duration
	newName                func() string
}

// create makes a server of spec that has never run.
func (s simulation) create(clusterID string, spec driver.ServerSpec) Record {
	return Record{
		UID: spec.UID, ID: "fake-" + s.newName(), ClusterID: clusterID,
		Namespace: spec.Namespace, Name: spec.Name, Epoch: spec.Epoch,
		State: driver.StateStopped,
	}
}

// ensure brings a server as close to spec as it can be by now.
func (s simulation) ensure(r Record, spec driver.ServerSpec, now time.Time) Record {
	r = settle(r, now)
	resize(&r, spec)
	if r.on() && spec.RestartRun != "" && r.Run == spec.RestartRun {
		s.stop(&r, spec.StopBy, now)
	}
	switch spec.Power {
	case driver.PowerOff:
		s.stop(&r, spec.StopBy, now)
	case driver.PowerOn:
		s.run(&r, spec, now)
		resume(&r)
	case driver.PowerPaused:
		s.run(&r, spec, now)
		pause(&r)
	}
	if !r.on() {
		r.Config = configOf(spec)
	}
	return r
}

// resize applies the fields that can change at any time.
func resize(r *Record, spec driver.ServerSpec) {
	r.CPUMilli, r.MemoryBytes = spec.CPUMilli, spec.MemoryBytes
	if spec.RootDiskBytes != 0 {
		r.RootDiskBytes = spec.RootDiskBytes
	}
	r.RestartPolicy = spec.RestartPolicy
}

// stop asks a running server to stop, and forces it if that took too long.
func (s simulation) stop(r *Record, stopBy, now time.Time) {
	if !r.on() {
		return
	}
	if r.State != driver.StateStopping {
		r.State = driver.StateStopping
		r.StopsAt = now.Add(s.shutdownTime).UTC()
	}
	*r = settle(*r, now)
	force(r, stopBy, now)
}

// force ends a stop that has taken too long. A StopBy of zero means never.
func force(r *Record, stopBy, now time.Time) {
	if r.State == driver.StateStopping && !stopBy.IsZero() && !now.Before(stopBy) {
		end(r, forcedExit, now)
	}
}

func end(r *Record, code int, at time.Time) {
	r.State = driver.StateStopped
	r.Exit = &Exit{Code: code, Reason: reasonOf(code), At: at.UTC()}
	r.UpAt, r.StopsAt = time.Time{}, time.Time{}
}

// run starts a server that is off. A server that is stopping ends its run first.
func (s simulation) run(r *Record, spec driver.ServerSpec, now time.Time) {
	force(r, spec.StopBy, now)
	if r.on() {
		return
	}
	r.Config = configOf(spec)
	r.State, r.Run, r.Exit = driver.StateRunning, "run-"+s.newName(), nil
	r.StartedAt, r.UpAt = now.UTC(), now.Add(s.bootTime).UTC()
}

func resume(r *Record) {
	if r.State == driver.StatePaused {
		r.State = driver.StateRunning
	}
}

func pause(r *Record) {
	if r.State == driver.StateRunning {
		r.State = driver.StatePaused
	}
}

// settle returns the record with the changes that are due by now.
func settle(r Record, now time.Time) Record {
	if r.State == driver.StateStopping && !r.IgnoreShutdown && !now.Before(r.StopsAt) {
		at := r.StopsAt
		if at.IsZero() {
			at = now
		}
		end(&r, 0, at)
	}
	return r
}

// nextMoment returns when the server will change by itself, or zero.
func nextMoment(r Record, now time.Time) time.Time {
	switch {
	case r.State == driver.StateRunning && now.Before(r.UpAt):
		return r.UpAt
	case r.State == driver.StateStopping && !r.IgnoreShutdown && now.Before(r.StopsAt):
		return r.StopsAt
	}
	return time.Time{}
}

// serverOf converts the record to a driver.Server.
func serverOf(r Record, now time.Time) driver.Server {
	r = settle(r, now)
	s := driver.Server{
		UID: r.UID, ID: r.ID, Namespace: r.Namespace, Name: r.Name,
		Run: r.Run, State: r.State, StartedAt: r.StartedAt, Retained: r.Retained,
		Applied: driver.Resources{CPUMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, RootDiskBytes: r.RootDiskBytes},
	}
	if r.Exit != nil {
		s.Exit = &driver.Exit{Code: r.Exit.Code, Reason: r.Exit.Reason, At: r.Exit.At}
	}
	if r.on() {
		s.Addresses = []string{addressOf(r.UID)}
		s.Ports = portsOf(r.Ports)
	}
	switch {
	case r.State == driver.StateRunning && now.Before(r.UpAt):
		s.State, s.Progress = driver.StateStarting, "booting"
	case r.State == driver.StateStopping:
		s.Progress = "shutting down"
	}
	return s
}

// addressOf is the same for a UID in every run and process.
func addressOf(uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return fmt.Sprintf("10.%d.%d.%d", sum[0], sum[1], 1+sum[2]%254)
}

// portsOf returns the requested ports of the host; none is chosen.
func portsOf(asked []Port) []driver.Port {
	var ports []driver.Port
	for _, p := range asked {
		if p.HostPort != 0 {
			ports = append(ports, driver.Port{Protocol: cmp.Or(p.Protocol, "TCP"), Port: p.Port, HostPort: p.HostPort, HostIP: p.HostIP})
		}
	}
	return ports
}
