// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// closing returns a driver of the engine whose operator has closed the egress, and leads by a later epoch.
func (e *engine) closing(t *testing.T) *Driver {
	t.Helper()
	o := e.options()
	o.Egress, o.HostPorts = EgressDeny, "30000-32767"
	return openWith(t, o)
}

// servedOf returns the revision that the supervisor of a server has.
func servedOf(t *testing.T, inst *instance.Instance) control.Revision {
	t.Helper()
	c, err := inst.Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	s, err := c.Status(t.Context())
	assert.NoError(t, err)
	return s.Wanted
}

// wantClosed checks that the supervisor of a server has the recorded edge, and that this closes the egress.
func wantClosed(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	inst := d.Host.InstanceOf(spec.UID)
	egress, recorded := egressOf(t, inst)
	served := servedOf(t, inst)
	assert.True(t, egress.Deny && served == recorded, "recorded is %+v as %+v, and the supervisor has %+v", egress, recorded, served)
	s := listAnswering(t, d, spec.UID)[0]
	assert.True(t, !s.NeedsEnsure, "it is %+v", s)
}

// TestEgressBeforeTheSpec checks that a machine loses the egress that its operator has closed whatever its spec says: a
// spec may be refused, fail to apply, or stop the machine while the guest does not react.
func TestEgressBeforeTheSpec(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		says   string
	}{
		"memory":    {func(s *driver.ServerSpec) { s.MemoryBytes = 1 << 60 }, driver.ErrInvalid, "memory"},
		"host port": {func(s *driver.ServerSpec) { s.Ports = []driver.Port{{Name: "http", Port: 80, HostPort: 29999}} }, driver.ErrInvalid, "--qemu-host-ports"},
		"stop":      {func(s *driver.ServerSpec) { s.Power = driver.PowerOff }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, before := newDriver(t)
			spec := e.spec()
			spec.Image.Source = e.stubborn
			reach(t, before, spec, driver.StateRunning)
			d := e.closing(t)
			changed := spec
			changed.Epoch = 7
			c.change(&changed)
			if c.kind != nil {
				refuses(t, d, changed, c.kind, c.says)
			} else {
				ensure(t, d, changed)
			}
			wantClosed(t, d, spec)
			endNow(t, d, spec)
		})
	}
}

// endNow ends a machine that does not stop.
func endNow(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(context.WithoutCancel(t.Context())))
}

// TestEgressReachesTheSupervisor checks that the driver sends the recorded egress again to a supervisor that has not
// applied it, also if the machine stops, and although the spec is refused each time.
func TestEgressReachesTheSupervisor(t *testing.T) {
	t.Parallel()
	for name, stops := range map[string]bool{"it runs": false, "it stops": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, before := newDriver(t)
			spec := e.spec()
			spec.Image.Source = e.stubborn
			reach(t, before, spec, driver.StateRunning)
			if stops {
				spec.Power = driver.PowerOff
				ensure(t, before, spec)
			}
			edit(t, before, spec, func(r map[string]any) {
				r["egress"].(map[string]any)["deny"] = true //nolint:forcetypeassert // as it is written
				r["networkRevision"] = map[string]any{"epoch": 1, "number": 8}
			})
			d := e.closing(t)
			s := listAnswering(t, d, spec.UID)[0]
			assert.True(t, s.NeedsEnsure, "it is %+v", s)
			spec.MemoryBytes = 1 << 60
			_, err := d.Ensure(t.Context(), spec)
			assert.True(t, stops == (err == nil) && (err == nil || errors.Is(err, driver.ErrInvalid)), "Ensure returns %v", err)
			wantClosed(t, d, spec)
			endNow(t, d, spec)
		})
	}
}

// TestEgressClosesOnAFullDisk checks that an egress which is closed reaches the supervisor though it cannot be recorded,
// that this is reported, and that it is recorded as soon as there is room.
func TestEgressClosesOnAFullDisk(t *testing.T) {
	t.Parallel()
	e, before := newDriverOnSmallDisk(t, 16)
	spec := e.spec()
	reach(t, before, spec, driver.StateRunning)
	d := e.closing(t)
	_, err := d.Host.FindSupervisor()
	assert.NoError(t, err)
	inst := d.Host.InstanceOf(spec.UID)
	_, first := egressOf(t, inst)
	e.fill(t)
	e.fillInodes(t)
	refuses(t, d, spec, driver.ErrExhausted, "no room left on its disk")
	if egress, now := egressOf(t, inst); egress.Deny || now != first || !now.IsBefore(servedOf(t, inst)) {
		t.Errorf("recorded is %+v as %+v, and the supervisor has %+v", egress, now, servedOf(t, inst))
	}
	s := listAnswering(t, d, spec.UID)[0]
	assert.True(t, s.NeedsEnsure, "on a full disk it is %+v", s)
	fillers, err := filepath.Glob(filepath.Join(e.dir, "filler*"))
	assert.NoError(t, err)
	for _, path := range fillers {
		assert.NoError(t, os.Remove(path))
	}
	reach(t, d, spec, driver.StateRunning)
	wantClosed(t, d, spec)
}
