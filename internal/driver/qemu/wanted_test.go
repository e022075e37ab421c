// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// withPort returns the spec of a server with a port, and a check that the host port answers.
func withPort(t *testing.T, e *engine, d *Driver) (spec driver.ServerSpec, answers func(t testing.TB) error) {
	t.Helper()
	spec = e.spec()
	spec.Ports = []driver.Port{{Name: "http", Protocol: "TCP", Port: 80}}
	at := fmt.Sprintf("127.0.0.1:%d", reach(t, d, spec, driver.StateRunning).Ports[0].HostPort)
	answers = func(testing.TB) error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	assert.Check(t, "the port answers", answers)
	return spec, answers
}

// endSupervisor kills the supervisor of a server, and waits until it is gone, or another one has taken its place.
func endSupervisor(t *testing.T, inst *instance.Instance) {
	t.Helper()
	before := supervisorOf(t, inst)
	signalSupervisor(t, inst, syscall.SIGKILL)
	assert.Eventually(t, "the supervisor is gone", func(t testing.TB) error {
		if follows, err := inst.Supervisor().IsSupervised(); err != nil || follows && supervisorOf(t, inst) == before {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
}

// TestPortsOfNextSupervisor checks that a supervisor serves the ports from its start, even if the controller is killed
// directly after it has started the supervisor, and even if the supervisor was halted and had not answered yet.
func TestPortsOfNextSupervisor(t *testing.T) {
	t.Parallel()
	for name, isHalted := range map[string]bool{"starter is killed": false, "supervisor is slow": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			spec, answers := withPort(t, e, d)
			inst, err := d.Host.InstanceOf(spec.UID).Load()
			assert.NoError(t, err)
			before := inst.NetworkRevision
			endSupervisor(t, inst)
			assert.NoError(t, assert.ErrorOf(inst.Supervisor().Reach(t.Context())))
			if isHalted {
				signalSupervisor(t, inst, syscall.SIGSTOP)
				assert.Check(t, "the port of a halted supervisor answers", answers)
				s := listed(t, d, spec)
				assert.True(t, len(s.Ports) == 0 && !s.NeedsEnsure, "while it does not answer it is %+v", s)
				signalSupervisor(t, inst, syscall.SIGCONT)
			}
			assert.Check(t, "the port answers", answers)
			s := listAnswering(t, e.open(t), spec.UID)[0]
			assert.True(t, len(s.Ports) == 1 && !s.NeedsEnsure, "it is %+v", s)
			now, err := inst.Load()
			assert.True(t, err == nil && now.NetworkRevision == before, "wanted is %+v, %v, and was %+v", now.NetworkRevision, err, before)
		})
	}
}

// egressOf returns where a guest may connect to, as is recorded, and the revision of that.
func egressOf(t *testing.T, inst *instance.Instance) (control.Egress, control.Revision) {
	t.Helper()
	now, err := inst.Load()
	assert.NoError(t, err)
	return now.Egress, now.NetworkRevision
}

// TestOnlyTheLeaderWants checks that a replica that does not lead, and allows another egress, starts a supervisor with the
// edge that the leader has recorded, that its egress counts once it leads, and that the previous leader changes nothing then.
func TestOnlyTheLeaderWants(t *testing.T) {
	t.Parallel()
	e, leader := newDriver(t)
	spec, answers := withPort(t, e, leader)
	inst := leader.Host.InstanceOf(spec.UID)
	_, first := egressOf(t, inst)
	o := e.options()
	o.Egress = EgressDeny
	standby := openWith(t, o)
	keepWatching(t, standby)
	endSupervisor(t, inst)
	s := listAnswering(t, standby, spec.UID)[0]
	assert.True(t, len(s.Ports) == 1 && s.NeedsEnsure, "by the standby it is %+v", s)
	assert.Check(t, "the port answers", answers)
	if egress, now := egressOf(t, inst); egress.Deny || now != first {
		t.Errorf("the standby wants %+v of %+v", egress, now)
	}
	s = listAnswering(t, leader, spec.UID)[0]
	assert.True(t, !s.NeedsEnsure, "by the leader it is %+v", s)

	next := spec
	next.Epoch = 7
	s = reach(t, standby, next, driver.StateRunning)
	assert.True(t, len(s.Ports) == 1 && !s.NeedsEnsure, "by the next leader it is %+v", s)
	egress, second := egressOf(t, inst)
	want := (control.Revision{Epoch: 7, Number: first.Number + 1})
	assert.True(t, egress.Deny && second == want, "the next leader wants %+v of %+v, want deny of %+v", egress, second, want)
	refuses(t, leader, spec, driver.ErrFenced)
	inst.Leader = spec.Epoch
	c, err := inst.Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	late := control.Wanted{Revision: first}
	assert.ErrorIs(t, "the edge that the previous leader wants", assert.ErrorOf(c.SetWanted(t.Context(), late)), failure.ErrStale)
	if s, err := c.Status(t.Context()); err != nil || s.Wanted != second || len(s.ServedPorts) != 1 {
		t.Errorf("the supervisor has %+v, %v", s, err)
	}
}

// TestEgressOfRefusedSpec checks that a spec which is refused does not keep a machine from the egress that the next leader
// allows.
func TestEgressOfRefusedSpec(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, answers := withPort(t, e, d)
	o := e.options()
	o.Egress = EgressDeny
	d = openWith(t, o)
	refused := spec
	refused.Ports = []driver.Port{{Name: "http", Port: 80, HostIP: "::1"}}
	refuses(t, d, refused, driver.ErrUnsupported, "spec.ports[0].hostIP")
	inst := d.Host.InstanceOf(spec.UID)
	egress, recorded := egressOf(t, inst)
	c, err := inst.Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	s, err := c.Status(t.Context())
	assert.True(t, err == nil && egress.Deny && s.Wanted == recorded, "recorded is %+v of %+v, and the supervisor has %+v, %v", egress, recorded, s.Wanted, err)
	assert.Check(t, "the port answers", answers)
}

// TestRestoredRecord checks that a supervisor with a newer state than the record, for example after a backup of the folder
// was restored, is replaced by a supervisor with the record's state. A record without a revision, of an older version of
// Drover, gets a revision.
func TestRestoredRecord(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(map[string]any){
		"of a backup":         func(r map[string]any) { r["networkRevision"] = map[string]any{"epoch": 1, "number": 0} },
		"of a version before": func(r map[string]any) { delete(r, "networkRevision"); delete(r, "egress") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			spec, answers := withPort(t, e, d)
			edit(t, d, spec, func(r map[string]any) { r["networkRevision"] = map[string]any{"epoch": 1, "number": 8} })
			run := reach(t, d, spec, driver.StateRunning).Run
			edit(t, d, spec, change)
			s := listAnswering(t, d, spec.UID)[0]
			assert.True(t, s.NeedsEnsure, "it is %+v", s)
			s = reach(t, d, spec, driver.StateRunning)
			assert.True(t, s.Run == run && !s.NeedsEnsure && len(s.Ports) == 1, "in the end it is %+v", s)
			assert.Check(t, "the port answers", answers)
		})
	}
}

// TestPortMovesInTheGuest checks that a host port which the spec names leads to another port of the guest without a
// restart, though the machine itself has it.
func TestPortMovesInTheGuest(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, answers := withPort(t, e, d)
	first := listed(t, d, spec)
	spec.Ports[0].HostPort = first.Ports[0].HostPort
	spec.Ports = append(slices.Clone(spec.Ports), driver.Port{Name: "other", Protocol: "UDP", Port: 53})
	spec.Ports[0].Port = 8080
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Ports) == 2 && s.Ports[0].Port == 8080 && s.Ports[0].HostPort == first.Ports[0].HostPort && s.Run == first.Run && !s.NeedsEnsure,
		"it is %+v, and was %+v", s, first)
	assert.Check(t, "the port answers", answers)
}

// TestSupervisorsOfPausedGuest checks that supervisors can replace each other any number of times while a guest is paused.
// QEMU does not notice the end of a connection while the guest reads nothing from its network.
func TestSupervisorsOfPausedGuest(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, answers := withPort(t, e, d)
	pause(t, d, spec)
	inst := d.Host.InstanceOf(spec.UID)
	for range 5 {
		assert.Check(t, "the port answers", answers) // which sends something to the guest
		endSupervisor(t, inst)
		assert.Eventually(t, "there is another", func(t testing.TB) error { return assert.ErrorOf(inst.Supervisor().Reach(t.Context())) })
	}
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Ports) == 1 && !s.NeedsEnsure, "in the end it is %+v", s)
}
