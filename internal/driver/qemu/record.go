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
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/hostports"
	"cloudnative.tw/drover/internal/machine"
)

// Names in a server's directory, beside those of its machine.
const (
	recordFile   = "server.json"
	rootDiskFile = "root.qcow2"
	oldRootFile  = "root.old.qcow2"
)

// phase is how far a server's run has come; empty before the first.
type phase string

const (
	// phaseStarting means that its QEMU is being started. A server in this phase that does
	// not run got no further, and its guest did nothing.
	phaseStarting phase = "starting"
	// phaseOn means that it runs, or that it ran and the end is in its end file.
	phaseOn phase = "on"
)

// record is what is stored of a server, by the holder of its lock.
type record struct {
	ClusterID string    `json:"clusterID"`
	UID       types.UID `json:"uid"`
	ID        string    `json:"id"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Epoch     uint64    `json:"epoch"`
	Retained  bool      `json:"retained,omitempty"`

	Phase     phase     `json:"phase,omitempty"`
	Run       string    `json:"run,omitempty"`
	StartedAt time.Time `json:"startedAt,omitzero"`
	Stop      *stop     `json:"stop,omitempty"`
	// GraceSeconds is the grace period of the spec, for a shutdown of the host; nil in a
	// record of an older version.
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`
	// CPUGroup is the control group that limits the run to a fraction of a CPU; CPUNote says
	// why there is none.
	CPUGroup string `json:"cpuGroup,omitempty"`
	CPUNote  string `json:"cpuNote,omitempty"`

	// MachineType is the machine type, which the server keeps for life. It is empty in a
	// record of an older version until the next start, which takes the newest as that
	// version did.
	MachineType string `json:"machineType,omitempty"`
	// Accelerator of the last run; empty where an older version started it.
	Accelerator string `json:"accelerator,omitempty"`
	// Forwards are those of the last run.
	Forwards []machine.Forward `json:"forwards,omitempty"`

	Settings settings `json:"settings"`
	Root     disk     `json:"root"`
	// Old is the previous root disk, of a replacement that an older version began and did
	// not finish: see restoreRoot.
	Old *disk `json:"old,omitempty"`
	// Volumes are the volumes by name, including those that are not attached any more.
	Volumes map[string]disk `json:"volumes,omitempty"`
}

// settings are the parts of the spec that take a restart to change.
type settings struct {
	CPUMilli    int64            `json:"cpuMilli"`
	MemoryBytes int64            `json:"memoryBytes"`
	Image       imageSettings    `json:"image,omitzero"`
	Kernel      driver.Kernel    `json:"kernel,omitzero"`
	Ports       []driver.Port    `json:"ports,omitempty"`
	Volumes     []volumeSettings `json:"volumes,omitempty"`
	SSHKeys     []string         `json:"sshKeys,omitempty"`
	// UserData and NetworkData are hashes, which show whether the texts changed.
	UserData    string `json:"userData,omitempty"`
	NetworkData string `json:"networkData,omitempty"`
}

// volumeSettings are a volume's settings without its image: a volume is made of that only
// once.
type volumeSettings struct {
	Name     string `json:"name"`
	ReadOnly bool   `json:"readOnly,omitempty"`
}

// stop is a stop that was begun and will be completed.
type stop struct {
	By time.Time `json:"by,omitzero"`
}

// settingsOf returns the settings of a spec, for a server whose image is known.
func settingsOf(spec driver.ServerSpec, image imageSettings) settings {
	s := settings{
		CPUMilli: spec.CPUMilli, MemoryBytes: spec.MemoryBytes, Image: image, Ports: spec.Ports,
		SSHKeys: spec.SSHKeys, UserData: hashSecret(spec.UserData), NetworkData: hashSecret(spec.NetworkData),
	}
	if spec.Image.Kernel != nil {
		s.Kernel = *spec.Image.Kernel
	}
	for _, v := range spec.Volumes {
		s.Volumes = append(s.Volumes, volumeSettings{v.Name, v.ReadOnly})
	}
	return s
}

// pendingFields names the fields of the spec that the settings do not have yet.
func (s settings) pendingFields(want settings) []string {
	var fields []string
	for _, f := range []struct {
		name    string
		differs bool
	}{
		{"resource.cpu", s.CPUMilli != want.CPUMilli},
		{"resource.memory", s.MemoryBytes != want.MemoryBytes},
		{"image", s.Image != want.Image || s.Kernel != want.Kernel},
		{"volumes", !slices.Equal(s.Volumes, want.Volumes)},
		{"ports", !slices.EqualFunc(s.Ports, want.Ports, hostports.IsSamePort)},
		{"sshAuthorizedKeys", !slices.Equal(s.SSHKeys, want.SSHKeys)},
		{"userData", s.UserData != want.UserData},
		{"networkData", s.NetworkData != want.NetworkData},
	} {
		if f.differs {
			fields = append(fields, f.name)
		}
	}
	return fields
}

func newID() string { return strings.ReplaceAll(string(uuid.NewUUID()), "-", "")[:16] }

// instanceAt returns the server whose directory is at a path. The name of the directory
// begins with the UID. Nothing else of the server is known yet.
func (d *Driver) instanceAt(path string) *instance {
	uid := uidOf(path)
	return &instance{
		Machine: machine.Machine{Path: path, UUID: string(uid), Staging: d.dir},
		record:  record{UID: uid}, driver: d,
	}
}

func (d *Driver) instanceOf(uid types.UID) *instance {
	return d.instanceAt(d.dir.Path(vmsDir, string(uid)))
}

// hasDirectory reports whether there is a directory at all.
func (inst *instance) hasDirectory() (bool, error) {
	_, err := os.Lstat(inst.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// brokenError says what of a server cannot be read, which is most often its record. Its
// owner and its parts are unknown then, so no process changes it until it is repaired.
type brokenError struct{ error }

// wrapBroken makes an error one server's own, so that the others can still be seen.
// Where the process has no descriptors left, the error is not the server's.
func wrapBroken(mend string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	return brokenError{fmt.Errorf("%s: %w", mend, err)}
}

func isBroken(err error) bool {
	_, broken := errors.AsType[brokenError](err)
	return broken
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
		return s, brokenError{fmt.Errorf("mend %s, or remove its folder: %w", inst.File(recordFile), err)}
	}
	if r.ClusterID == "" || r.ID == "" || checkUID(r.UID) != nil {
		return s, brokenError{fmt.Errorf("mend %s: clusterID, uid or id is missing", inst.File(recordFile))}
	}
	if r.UID != inst.UID {
		return s, brokenError{fmt.Errorf("mend %s: its uid is %s, as in a copy of that server's folder, and must be %s", inst.File(recordFile), r.UID, inst.UID)}
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
	mend := "mend what keeps Drover from reading this"
	if errors.Is(err, fs.ErrNotExist) {
		mend = "mend or remove " + inst.Path
	}
	return wrapBroken(mend, err)
}

func (inst *instance) save() error {
	content, err := json.MarshalIndent(inst.record, "", "  ")
	if err != nil {
		return err
	}
	return inst.driver.dir.Replace(inst.File(recordFile), append(content, '\n'))
}

// exitFile returns the path of the file that records how a run ended. It is written once,
// before QEMU is made to quit. It is outside the server's directory, which a person may
// be about to remove.
func (inst *instance) exitFile() string {
	return inst.driver.dir.Path(endsDir, string(inst.UID)+"."+inst.ID+"."+inst.Run+".json")
}

// writeExit records an end, and returns the one that was recorded first. It leaves no
// record of a server that was removed or released meanwhile.
func (inst *instance) writeExit(end driver.Exit) (driver.Exit, error) {
	content, err := json.Marshal(end)
	if err != nil {
		return end, err
	}
	err = inst.driver.dir.Create(inst.exitFile(), content)
	if err == nil && !inst.mayExist() {
		return end, os.Remove(inst.exitFile())
	}
	if !errors.Is(err, fs.ErrExist) {
		return end, err
	}
	first, err := inst.readExit()
	if err != nil || first == nil {
		return end, err
	}
	return *first, nil
}

// recordExit records an end as noteEnd does, and adds the last output of QEMU to an end that
// was not requested. It keeps an end that could not be written in memory, as first seen,
// so that the next look finds the same.
func (inst *instance) recordExit(end driver.Exit) (driver.Exit, error) {
	file := inst.exitFile()
	if end.Reason == reasonKilled || isCrash(end) {
		end.Output = inst.LastOutput(outputTail)
	}
	if before, ok := inst.driver.unwrittenExits.Load(file); ok {
		end = before
	}
	first, err := inst.writeExit(end)
	if err == nil {
		inst.driver.unwrittenExits.Delete(file)
		return first, nil
	}
	before, ok := inst.driver.unwrittenExits.LoadOrStore(file, end)
	if !ok {
		inst.driver.Log.Info("Machine has ended, and that cannot be written down", "uid", inst.UID, "end", end.Reason, "cause", err.Error())
	}
	return before, inst.driver.dir.Explain(err)
}

// readExit returns how the run ended, nil where no end is recorded. An end file damaged by a
// power cut shows only that there was an end.
func (inst *instance) readExit() (*driver.Exit, error) {
	content, err := os.ReadFile(inst.exitFile())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is the answer for no end.
	}
	if err != nil {
		return nil, err
	}
	var end driver.Exit
	if json.Unmarshal(content, &end) == nil && end.Reason != "" {
		return &end, nil
	}
	info, err := os.Stat(inst.exitFile())
	if err != nil {
		return nil, err
	}
	return &driver.Exit{Code: codeKilled, Reason: reasonKilled, At: info.ModTime()}, nil
}

// removeExits removes the ends of earlier runs.
func (d *Driver) removeExits(uid types.UID) {
	old, _ := filepath.Glob(d.dir.Path(endsDir, string(uid)+".*.json"))
	for _, path := range old {
		_ = os.Remove(path)
	}
	d.unwrittenExits.DeleteFunc(func(file string, _ driver.Exit) bool { return uidOf(file) == uid })
}

func (d *Driver) retainedPath(uid types.UID, id string) string {
	return d.dir.Path(retainedDir, string(uid)+"."+id)
}
