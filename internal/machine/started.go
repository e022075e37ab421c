// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strconv"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
)

// startedProcess is the content of StartedFile: the QEMU that was started last. Process ID and
// start time identify it, whatever it makes of its command line.
type startedProcess struct {
	// UUID is the machine's: another one's folder may be a copy of this one's.
	UUID string `json:"uuid"`
	PID  int    `json:"pid"`
	// StartTicks is when it was started: see proc.StartTicks.
	StartTicks  int64              `json:"startTicks"`
	Confinement launch.Confinement `json:"confinement"`
}

// recordStarted records which QEMU was started. PIDFile stays, for people and for older
// versions.
func (m Machine) recordStarted(qemu *launch.Started) error {
	pid := qemu.Process.Pid
	if err := m.Staging.ReplaceVolatile(m.File(PIDFile), []byte(strconv.Itoa(pid)+"\n")); err != nil {
		return err
	}
	ticks, err := proc.StartTicks(pid)
	if err != nil {
		return nil //nolint:nilerr // It has ended, which the caller notices.
	}
	content, err := json.Marshal(startedProcess{m.UUID, pid, ticks, qemu.Confinement})
	if err != nil {
		return err
	}
	return m.Staging.ReplaceVolatile(m.File(StartedFile), append(content, '\n'))
}

// findStarted returns the QEMU that was started last, if its process still exists; nil if
// that is not known, as where Drover ended before it could record it.
func (m Machine) findStarted() (*startedProcess, error) {
	content, _, err := atomicfile.Read(m.File(StartedFile), maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // Nil is for none.
	}
	if err != nil {
		return nil, err
	}
	var started startedProcess
	if err := json.Unmarshal(content, &started); err != nil || started.UUID != m.UUID {
		return nil, nil //nolint:nilnil,nilerr // It is not this machine's.
	}
	ticks, err := proc.StartTicks(started.PID)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (ticks != started.StartTicks || proc.UserID(started.PID) != int64(started.Confinement.UserID)) {
		return nil, nil //nolint:nilnil // Nil is for none.
	}
	return &started, err
}

// FindConfinement returns how the machine's QEMU is confined; nil if that is not known.
func (m Machine) FindConfinement() (*launch.Confinement, error) {
	started, err := m.findStarted()
	if started == nil {
		return nil, err
	}
	return &started.Confinement, err
}

// findOwnProcess returns the process ID of the machine's last QEMU, whatever it looks like by
// now: one that its guest broke out of can free its run lock and change its command line. It
// never returns a process of the user of this program, which could have written the file;
// then it returns 0.
func (m Machine) findOwnProcess() (pid int) {
	started, err := m.findStarted()
	if err != nil || started == nil || int64(started.Confinement.UserID) == int64(os.Geteuid()) {
		return 0
	}
	return started.PID
}
