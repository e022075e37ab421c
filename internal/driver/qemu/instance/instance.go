// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package instance is one server of the qemu driver: its directory, its machine and its record.
//
// Start with Instance in instance.go, and with Host (host.go), which all instances share. observe.go
// reads a server's state. start.go, stop.go, disk.go and edge.go change a server through its
// supervisor (calls.go), the process that controls its QEMU; supervise.go keeps a supervisor
// running. Packages record, exits and containerboot have the stored state of a server, the ends of its
// runs, and the boot of container images. Callers of methods that change a server hold its lock.
package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/format"
	"cloudnative.tw/drover/internal/machine"
)

// Names in a server's directory, in addition to the files of package machine.
const (
	RecordFile   = "server.json"
	RootDiskFile = "root.qcow2"
)

// maxFileSize is above the size of any record, since specs are from objects in etcd, which are smaller.
const maxFileSize = 4 << 20

// Instance is one server: its directory and machine, its record, and the observed state of its
// machine.
type Instance struct {
	Machine machine.Machine
	record.Record
	observed

	Host *Host
	// Leader is the epoch of the leader that changes the server; 0 if no leader does.
	Leader uint64
	// Exit is how the last run ended; nil during a run and before the first.
	Exit *driver.Exit
	// Broken says which file of the server cannot be read. If it is the record, only the UID and
	// the field On are known.
	Broken error
}

// IsGone reports whether the directory certainly does not exist.
func (inst *Instance) IsGone() bool {
	_, err := os.Lstat(inst.Machine.Path)
	return errors.Is(err, fs.ErrNotExist)
}

// Load returns the server with its present record. It returns fs.ErrNotExist only if the
// directory does not exist: a server that cannot be read is not gone.
func (inst *Instance) Load() (*Instance, error) {
	s := inst.Host.InstanceAt(inst.Machine.Path)
	s.Leader = inst.Leader
	content, _, err := atomicfile.Read(inst.Machine.File(RecordFile), maxFileSize)
	if err != nil {
		return s, ClassifyReadError(inst, err)
	}
	r, err := record.Read(content)
	if _, isLater := errors.AsType[*format.UnknownError](err); isLater {
		return s, brokenError{fmt.Errorf("%s: %w", inst.Machine.File(RecordFile), err)}
	}
	if err != nil {
		return s, brokenError{fmt.Errorf("repair %s, or remove its folder with the disks: %w", inst.Machine.File(RecordFile), err)}
	}
	if r.UID != inst.UID {
		return s, brokenError{fmt.Errorf("repair %s: its uid is %s, as in a copy of that server's folder, and must be %s", inst.Machine.File(RecordFile), r.UID, inst.UID)}
	}
	s.Record = r
	return s, nil
}

// Save writes the record to the server's directory.
func (inst *Instance) Save() error {
	content, err := format.Encode(inst.Record)
	if err != nil {
		return err
	}
	return inst.Host.StateDir.Replace(inst.Machine.File(RecordFile), content)
}

// IsAlive reports whether the guest runs, is paused or is about to be started.
func (inst *Instance) IsAlive() bool {
	return inst.On && (inst.Phase == record.PhaseStarting || inst.Exit == nil)
}

// IsPaused reports whether the guest waits to be resumed.
func (inst *Instance) IsPaused() bool {
	return inst.RunState == machine.StatusPaused || inst.RunState == machine.StatusPrelaunch || inst.RunState == machine.StatusIOError
}

// stateOf returns the state of a server. isAlive and isPaused are the results of IsAlive and IsPaused, and hasAnswered
// says whether its QEMU has answered.
func stateOf(isAlive, isPaused, hasAnswered bool, r record.Record) driver.State {
	switch {
	case !isAlive:
		return driver.StateStopped
	case r.Phase == record.PhaseStarting && !hasAnswered:
		return driver.StateStarting
	case r.Phase == record.PhaseStarting:
		return driver.StatePaused // QEMU is up, and the next call of Ensure resumes the guest
	case r.Phase == record.PhaseOn && r.Stop != nil:
		return driver.StateStopping
	case isPaused:
		return driver.StatePaused
	}
	return driver.StateRunning
}

// Report returns the server as the driver contract describes it.
func (inst *Instance) Report() driver.Server {
	out := driver.Server{
		UID: inst.UID, ID: inst.ID, Namespace: inst.Namespace, Name: inst.Name, Err: inst.Broken,
		Run: inst.Run, State: stateOf(inst.IsAlive(), inst.IsPaused(), inst.QueryErr == nil, inst.Record), StartedAt: inst.StartedAt, Retained: inst.Retained,
		Applied: driver.Resources{RootDiskBytes: inst.Root.Size}, ImageID: inst.Root.Image.Digest(),
	}
	if inst.IsAlive() {
		if inst.describeRun(&out); out.State == driver.StateRunning {
			out.NotReady, out.UnpublishedPorts = inst.health.Explain(), unpublishedPorts(inst.Record)
		}
		return out
	}
	// A start that was interrupted before QEMU ran does not count as a run. Otherwise the next
	// start would look like a restart.
	if inst.Phase == record.PhaseStarting {
		out.StartedAt = time.Time{}
	}
	if inst.Broken == nil {
		out.Exit = inst.Exit
	}
	if inst.Broken == nil && !inst.Retained {
		inst.Host.ReportedExits.Store(inst.UID, inst.Run)
	}
	return out
}

// describeRun adds the fields of a server that is on: CPUs and memory, which the next start may change, addresses and
// ports. The first address is the machine's, at which other machines reach it. The other addresses are the host's, and
// lead to the machine's ports.
func (inst *Instance) describeRun(out *driver.Server) {
	out.Applied.CPUMilli, out.Applied.MemoryBytes = inst.Settings.CPUMilli, inst.Settings.MemoryBytes
	out.Note, out.Accelerator, out.IsBooting = inst.CPUNote, inst.Accelerator, inst.isBooting
	if inst.Phase == record.PhaseOn {
		out.Confinement = inst.Host.describeConfinement(inst.Machine)
	}
	switch {
	case inst.Broken != nil:
	case inst.QueryErr != nil:
		out.Err = fmt.Errorf("QEMU does not answer: %w", inst.QueryErr)
		out.Progress = out.Err.Error()
	case inst.RunState == machine.StatusIOError:
		out.Err = inst.fault
	case out.State == driver.StateStopping:
		out.Progress = "waiting for the guest to power off"
	}
	if inst.Address.IsValid() { // not in the record of a version without networks
		out.Addresses = append(out.Addresses, inst.Address.Addr().String())
	}
	out.NeedsEnsure = inst.Phase == record.PhaseOn && !inst.Retained && needsEnsure(inst)
	for _, f := range inst.Forwards {
		if !inst.edge.servesPort(f) {
			continue
		}
		out.Ports = append(out.Ports, driver.Port{Protocol: strings.ToUpper(f.Protocol), Port: f.Port, HostPort: f.HostPort, HostIP: f.HostIP})
		address := f.HostIP
		if address == "" {
			address = inst.Host.address.Current(inst.Host.Clock.Now())
		}
		if !slices.Contains(out.Addresses, address) {
			out.Addresses = append(out.Addresses, address)
		}
	}
}

// needsEnsure reports whether the network or the control group of a run has to change. The egress changes even during a
// stop, since a guest may take any time to stop.
func needsEnsure(inst *Instance) bool {
	edge := inst.Edge()
	if inst.Stop != nil {
		return inst.edge.isKnown && edge.NeedsEgress()
	}
	return inst.edge.isKnown && edge.NeedsChange() || LacksGroup(inst)
}

// unpublishedPorts returns the ports that only the image declares.
func unpublishedPorts(r record.Record) []string {
	if r.Guest == nil {
		return nil
	}
	var published []driver.Port
	for _, f := range r.Forwards {
		published = append(published, driver.Port{Protocol: f.Protocol, Port: f.Port})
	}
	return kit.UnpublishedPorts(r.Guest.ExposedPorts, published)
}

// describeConfinement returns how a machine that runs is confined, or nil if its confinement cannot be read.
func (h *Host) describeConfinement(m machine.Machine) *driver.Confinement {
	c, err := m.FindConfinement()
	switch {
	case err != nil:
		return nil
	case c == nil || !h.Users.Matches(*c):
		return &driver.Confinement{Reason: driver.ReasonStartedBefore, Message: "Drover does not know how the machine was started, or would now start it as another user: restart it"}
	case c.IsWeak():
		return &driver.Confinement{Reason: driver.ReasonNotConfined, Message: c.Describe()}
	}
	return &driver.Confinement{Reason: driver.ReasonConfined, Message: c.Describe()}
}

// MoveToRetained moves the directory of a server that is marked as released, so that its UID is
// free. Its QEMU keeps running in the moved directory, without a network to other machines. After
// MoveToRetained a power cut cannot undo the release, which would make the server an orphan.
func (inst *Instance) MoveToRetained(ctx context.Context) error {
	if err := inst.Host.Broker.Remove(ctx, string(inst.UID)); err != nil {
		return driver.Errorf(driver.ErrRetry, "disconnecting the released server %s from other machines: %w", inst.UID, err)
	}
	// A search for the images in use must not miss this server during the move.
	release, err := inst.Host.Images.Hold()
	if err != nil {
		return err
	}
	defer release()
	dir := inst.Host.StateDir
	err = dir.Install(inst.Machine.Path, inst.Host.RetainedPath(inst.UID, inst.ID))
	if err == nil {
		err = dir.Sync(filepath.Dir(inst.Machine.Path))
	}
	if err != nil {
		return fmt.Errorf("moving the directory of the released server %s: %w", inst.UID, err)
	}
	inst.Host.Notify(inst.UID)
	return nil
}
