// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// instance is one server: its directory and machine, its record, and what was observed of
// it.
type instance struct {
	machine.Machine
	record

	driver *Driver
	// on reports whether its QEMU runs, even if the guest in it has ended.
	on bool
	// status is QEMU's run state, empty if QEMU does not answer; silence says why.
	status  string
	silence error
	// exit is how the last run ended; nil during a run and before the first. exitErr is why
	// it could not be recorded.
	exit    *driver.Exit
	exitErr error
	// fault is the disk error that the guest waits for, if there is one.
	fault error
	// broken says what of the server cannot be read. Without its record, only its UID and
	// whether it is on are known.
	broken error
}

// instanceAt returns the server whose directory is at a path. The name of the directory
// begins with the UID. Nothing else of the server is known yet.
func (d *Driver) instanceAt(path string) *instance {
	uid := uidOf(path)
	return &instance{
		Machine: machine.Machine{Path: path, UUID: string(uid), Staging: d.dir},
		record:  record{UID: uid}, driver: d,
	}
}

// instanceOf returns the server of a UID, whose directory may not exist.
func (d *Driver) instanceOf(uid types.UID) *instance {
	return d.instanceAt(d.dir.Path(vmsDir, string(uid)))
}

// allInstances returns the servers of all clusters, the released ones last.
func (d *Driver) allInstances() ([]*instance, error) {
	var instances []*instance
	for _, sub := range []string{vmsDir, retainedDir} {
		entries, err := os.ReadDir(d.dir.Path(sub))
		if err != nil {
			return nil, driver.Errorf(driver.ErrUnavailable, "%w", err)
		}
		for _, entry := range entries {
			if entry.IsDir() && uidOf(entry.Name()) != "" {
				instances = append(instances, d.instanceAt(d.dir.Path(sub, entry.Name())))
			}
		}
	}
	return instances, nil
}

func (d *Driver) instancesOf(uids []types.UID) ([]*instance, error) {
	uids, err := driver.UniqueUIDs(uids)
	if err != nil {
		return nil, err
	}
	instances := make([]*instance, len(uids))
	for i, uid := range uids {
		instances[i] = d.instanceOf(uid)
	}
	return instances, nil
}

// uidOf returns the UID in the name of a directory or a notification file; empty if there
// is none.
func uidOf(path string) types.UID {
	uid, _, _ := strings.Cut(filepath.Base(path), ".")
	if checkUID(types.UID(uid)) != nil {
		return ""
	}
	return types.UID(uid)
}

func newID() string { return strings.ReplaceAll(string(uuid.NewUUID()), "-", "")[:16] }

// hasDirectory reports whether there is a directory at all.
func (inst *instance) hasDirectory() (bool, error) {
	_, err := os.Lstat(inst.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// mayExist reports whether the directory may exist.
func (inst *instance) mayExist() bool {
	there, err := inst.hasDirectory()
	return there || err != nil
}

// load returns the server with its record as it is now. Its error is fs.ErrNotExist only
// where there is no directory: a server that cannot be read is not gone.
func (inst *instance) load() (*instance, error) {
	s := inst.driver.instanceAt(inst.Path)
	content, err := os.ReadFile(inst.File(recordFile))
	if err != nil {
		return s, inst.classifyReadError(err)
	}
	var r record
	if err := json.Unmarshal(content, &r); err != nil {
		return s, brokenError{fmt.Errorf("repair %s, or remove its folder: %w", inst.File(recordFile), err)}
	}
	if r.ClusterID == "" || r.ID == "" || checkUID(r.UID) != nil {
		return s, brokenError{fmt.Errorf("repair %s: clusterID, uid or id is missing", inst.File(recordFile))}
	}
	if r.UID != inst.UID {
		return s, brokenError{fmt.Errorf("repair %s: its uid is %s, as in a copy of that server's folder, and must be %s", inst.File(recordFile), r.UID, inst.UID)}
	}
	s.record = r
	return s, nil
}

// classifyReadError says whether a record that could not be read is gone, may be read
// later, or needs a repair. Removing a server helps only if it has no record.
func (inst *instance) classifyReadError(err error) error {
	if there, statErr := inst.hasDirectory(); !there && statErr == nil {
		return fs.ErrNotExist
	}
	repair := "repair what keeps Drover from reading this"
	if errors.Is(err, fs.ErrNotExist) {
		repair = "repair or remove " + inst.Path
	}
	return wrapBroken(repair, err)
}

// save replaces the record.
func (inst *instance) save() error {
	content, err := json.MarshalIndent(inst.record, "", "  ")
	if err != nil {
		return err
	}
	return inst.driver.dir.Replace(inst.File(recordFile), append(content, '\n'))
}

// isAlive reports whether a guest runs, or could continue.
func (inst *instance) isAlive() bool {
	return inst.on && (inst.Phase == phaseStarting || inst.exit == nil)
}

// isEnded reports whether a QEMU whose guest has ended waits to be reaped.
func (inst *instance) isEnded() bool { return inst.on && !inst.isAlive() }

func (inst *instance) isStopping() bool {
	return inst.isAlive() && inst.Phase == phaseOn && inst.Stop != nil
}

func (inst *instance) isPaused() bool {
	return inst.status == machine.StatusPaused || inst.status == machine.StatusPrelaunch || inst.status == machine.StatusIOError
}

// hasGuestEnded reports whether the guest has ended, by QEMU's last answer.
func (inst *instance) hasGuestEnded() bool {
	_, over := exitsByStatus[inst.status]
	return over
}

func (inst *instance) driverState() driver.State {
	switch {
	case !inst.isAlive():
		return driver.StateStopped
	case inst.Phase == phaseStarting && inst.silence != nil:
		return driver.StateStarting
	case inst.Phase == phaseStarting:
		return driver.StatePaused // QEMU is up, and a start continues only in a call
	case inst.isStopping():
		return driver.StateStopping
	case inst.isPaused():
		return driver.StatePaused
	}
	return driver.StateRunning
}

// report returns the server as the driver contract describes it, with the addresses to
// reach it. A machine's own address means nothing outside its QEMU.
func (inst *instance) report() driver.Server {
	out := inst.describeServer()
	if inst.isAlive() {
		out.Accelerator = inst.accelerator()
	}
	if !inst.isAlive() && !inst.Retained && inst.broken == nil {
		inst.driver.reportedExits.Store(inst.UID, inst.Run)
	}
	if !inst.isAlive() || len(inst.Forwards) == 0 {
		return out
	}
	for _, f := range inst.Forwards {
		out.Ports = append(out.Ports, driver.Port{Protocol: strings.ToUpper(f.Protocol), Port: f.Port, HostPort: f.HostPort, HostIP: f.HostIP})
		address := f.HostIP
		if address == "" {
			address = inst.driver.address.Current(inst.driver.Clock.Now())
		}
		if !slices.Contains(out.Addresses, address) {
			out.Addresses = append(out.Addresses, address)
		}
	}
	return out
}

// describeServer returns the server as the driver contract describes it, without addresses.
func (inst *instance) describeServer() driver.Server {
	out := driver.Server{
		UID: inst.UID, ID: inst.ID, Namespace: inst.Namespace, Name: inst.Name,
		Run: inst.Run, State: inst.driverState(), StartedAt: inst.StartedAt, Retained: inst.Retained,
		Applied: driver.Resources{RootDiskBytes: inst.Root.Size}, ImageID: inst.Root.Image.Digest(),
	}
	// A server that is off has no CPUs and no memory: the next start takes what the spec
	// says then.
	if inst.isAlive() {
		out.Applied.CPUMilli, out.Applied.MemoryBytes = inst.Settings.CPUMilli, inst.Settings.MemoryBytes
		out.Note = inst.CPUNote
	}
	switch {
	case inst.broken != nil:
		out.Err = inst.broken
	case !inst.isAlive():
		out.Exit = inst.exit
	case inst.silence != nil:
		out.Err = fmt.Errorf("QEMU does not answer: %w", inst.silence)
		out.Progress = out.Err.Error()
	case inst.status == machine.StatusIOError:
		out.Err = inst.fault
	case inst.isStopping():
		out.Progress = "waiting for the guest to power off"
	}
	return out
}

// notify notifies all watchers, in every process, that a server has changed. For a server
// that does not exist, or was removed meanwhile, it leaves no notification file behind.
func (d *Driver) notify(uids ...types.UID) {
	for _, uid := range uids {
		d.instanceOf(uid).notifyWatchers()
	}
}

// notifyWatchers notifies all watchers, in every process, that the server has changed. For
// one that does not exist, or was removed meanwhile, it leaves no notification file behind.
func (inst *instance) notifyWatchers() {
	if err := inst.driver.dir.ReplaceVolatile(inst.notificationFile(), nil); err != nil {
		inst.driver.Log.V(1).Info("Notification could not be written", "uid", inst.UID, "cause", err.Error())
	}
	there, err := inst.driver.instanceOf(inst.UID).hasDirectory()
	if !there && err == nil { // removed meanwhile
		inst.removeNotification()
	}
}

// notificationFile returns the path of the file that is written to notify watchers.
func (inst *instance) notificationFile() string {
	return inst.driver.dir.Path(notificationsDir, string(inst.UID))
}

// removeNotification removes the notification file of a server that is gone.
func (inst *instance) removeNotification() { _ = os.Remove(inst.notificationFile()) }
