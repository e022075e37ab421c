// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/report"
)

// forcedExit is the exit code of a run that was ended by force.
const forcedExit = 137

// simulation has the durations of a server's boot and shutdown, and the source of names.
type simulation struct {
	bootTime, shutdownTime time.Duration
	newName                func() string
}

// newRecord returns the record of a server that has never run.
func (s simulation) newRecord(clusterID string, spec driver.ServerSpec) Record {
	return Record{
		UID: spec.UID, ID: "fake-" + s.newName(), ClusterID: clusterID,
		Namespace: spec.Namespace, Name: spec.Name, Epoch: spec.Epoch,
		State: driver.StateStopped,
	}
}

// applySpec takes all steps toward spec that are possible now.
func (s simulation) applySpec(r Record, spec driver.ServerSpec, now time.Time) Record {
	applyResources(&r, spec)
	for {
		r = applyDueChanges(r, now)
		observed := kit.Observed{State: r.State, Run: r.Run, IsStopping: r.State == driver.StateStopping, StopBy: spec.StopBy}
		switch kit.NextStep(observed, spec, now) {
		case kit.StepStart:
			r.ServerConfig = configOf(spec)
			r.State, r.Run, r.Exit = driver.StateRunning, "run-"+s.newName(), nil
			r.StartedAt, r.UpAt = now.UTC(), now.Add(s.bootTime).UTC()
		case kit.StepStop:
			r.State, r.StopsAt = driver.StateStopping, now.Add(s.shutdownTime).UTC()
		case kit.StepKill:
			endRun(&r, forcedExit, now)
		case kit.StepPause:
			r.State = driver.StatePaused
		case kit.StepResume:
			r.State = driver.StateRunning
		default:
			if !r.isOn() {
				r.ServerConfig = configOf(spec)
			}
			return r
		}
	}
}

// applyResources applies the fields that can change at any time.
func applyResources(r *Record, spec driver.ServerSpec) {
	r.CPUMilli, r.MemoryBytes = spec.CPUMilli, spec.MemoryBytes
	if spec.RootDiskBytes != 0 {
		r.RootDiskBytes = spec.RootDiskBytes
	}
	r.RestartPolicy = spec.RestartPolicy
}

func endRun(r *Record, code int, at time.Time) {
	r.State = driver.StateStopped
	r.Exit = &Exit{Code: code, Reason: exitReason(code), At: at.UTC()}
	r.UpAt, r.StopsAt = time.Time{}, time.Time{}
}

// applyDueChanges returns the record with the changes that are due by now.
func applyDueChanges(r Record, now time.Time) Record {
	if r.State == driver.StateStopping && !r.IgnoreShutdown && !now.Before(r.StopsAt) {
		at := r.StopsAt
		if at.IsZero() {
			at = now
		}
		endRun(&r, 0, at)
	}
	return r
}

// nextTransition returns when the server's boot or shutdown ends, or zero.
func nextTransition(r Record, now time.Time) time.Time {
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
	r = applyDueChanges(r, now)
	s := driver.Server{
		UID: r.UID, ID: r.ID, Namespace: r.Namespace, Name: r.Name,
		Run: r.Run, State: r.State, StartedAt: r.StartedAt, Retained: r.Retained,
		Applied: driver.Resources{CPUMilli: r.CPUMilli, MemoryBytes: r.MemoryBytes, RootDiskBytes: r.RootDiskBytes},
	}
	if r.Exit != nil {
		s.Exit = &driver.Exit{Code: r.Exit.Code, Reason: r.Exit.Reason, At: r.Exit.At}
	}
	if r.isOn() {
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

// addressOf returns an address that depends only on the UID, so that it is the same in every process.
func addressOf(uid types.UID) string {
	sum := sha256.Sum256([]byte(uid))
	return fmt.Sprintf("10.%d.%d.%d", sum[0], sum[1], 1+sum[2]%254)
}

func interfaceOf(uid types.UID) report.Interface {
	address := netip.MustParseAddr(addressOf(uid))
	octets := address.As4()
	return report.Interface{
		Name: "eth0", MAC: net.HardwareAddr{2, 0, octets[0], octets[1], octets[2], octets[3]}.String(),
		Addresses: []netip.Prefix{netip.PrefixFrom(address, 8)},
	}
}

// portsOf returns the ports with a requested host port. The fake engine does not choose host ports.
func portsOf(requested []Port) []driver.Port {
	var ports []driver.Port
	for _, p := range requested {
		if p.HostPort != 0 {
			ports = append(ports, driver.Port{Protocol: cmp.Or(p.Protocol, "TCP"), Port: p.Port, HostPort: p.HostPort, HostIP: p.HostIP})
		}
	}
	return ports
}
