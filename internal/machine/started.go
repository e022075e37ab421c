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
// start time identify it, even if it changes its command line.
type startedProcess struct {
	// Mark is the machine's mark: the folder may be a copy of another machine's folder. It was a UUID at first.
	Mark string `json:"uuid"`
	PID  int    `json:"pid"`
	// StartTicks is the time of the start: see proc.StartTicks.
	StartTicks  int64              `json:"startTicks"`
	Confinement launch.Confinement `json:"confinement"`
}

// recordStarted writes StartedFile, and PIDFile for people and for older versions.
func (m Machine) recordStarted(qemu *launch.Started) error {
	pid := qemu.Process.Pid
	if err := m.Staging.ReplaceVolatile(m.File(PIDFile), []byte(strconv.Itoa(pid)+"\n")); err != nil {
		return err
	}
	ticks, err := proc.StartTicks(pid)
	if err != nil {
		return nil //nolint:nilerr // QEMU has ended, which the caller notices.
	}
	content, err := json.Marshal(startedProcess{m.Mark, pid, ticks, qemu.Confinement})
	if err != nil {
		return err
	}
	return m.Staging.ReplaceVolatile(m.File(StartedFile), append(content, '\n'))
}

// findStarted returns the QEMU that was started last. It returns nil if the process no longer
// exists, or was not recorded since Drover ended before.
func (m Machine) findStarted() (*startedProcess, error) {
	content, _, err := atomicfile.Read(m.File(StartedFile), maxFileSize)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // There is no record.
	}
	if err != nil {
		return nil, err
	}
	var started startedProcess
	if err := json.Unmarshal(content, &started); err != nil || started.Mark != m.Mark {
		return nil, nil //nolint:nilnil,nilerr // The record is damaged, or of another machine.
	}
	ticks, err := proc.StartTicks(started.PID)
	isAnother := err == nil && (ticks != started.StartTicks || proc.UserID(started.PID) != int64(started.Confinement.UserID))
	if errors.Is(err, fs.ErrNotExist) || isAnother {
		return nil, nil //nolint:nilnil // The process has ended.
	}
	return &started, err
}

// FindConfinement returns how the machine's QEMU is confined, nil if unknown.
func (m Machine) FindConfinement() (*launch.Confinement, error) {
	started, err := m.findStarted()
	if started == nil {
		return nil, err
	}
	return &started.Confinement, err
}

// findOwnProcess returns the process ID of the last started QEMU, 0 if unknown. It finds also a
// QEMU that has freed its run lock and changed its command line, as after a guest broke out. It
// never returns a process of this program's user, since a file that QEMU has written could name it.
func (m Machine) findOwnProcess() (pid int) {
	started, err := m.findStarted()
	if err != nil || started == nil || int64(started.Confinement.UserID) == int64(os.Geteuid()) {
		return 0
	}
	return started.PID
}
