// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
)

// remembered is what a driver remembers of servers beside their records. What a released
// server must not share with a later one of its UID is by directory.
type remembered struct {
	// reportedExits holds the last run whose exit was reported to a caller.
	reportedExits driver.SyncMap[types.UID, string]
	// powerPresses holds when the power button was pressed last.
	powerPresses driver.SyncMap[types.UID, powerPress]
	// accelerators holds the accelerator of a machine whose record does not name it.
	accelerators driver.SyncMap[types.UID, runAccelerator]
	// unansweredQueries holds the directories of machines whose QEMU did not answer a List.
	unansweredQueries driver.SyncMap[string, bool]
	// diskFaults holds, by directory, the disk error that a guest waits for.
	diskFaults driver.SyncMap[string, machine.DiskFault]
	// diskResumes holds, by directory, when a guest was resumed after a disk error.
	diskResumes driver.SyncMap[string, time.Time]
	// unwrittenExits holds, by file, the exits that could not be written for lack of space.
	unwrittenExits driver.SyncMap[string, driver.Exit]
}

// powerPress is a press of the power button in a run.
type powerPress struct {
	run string
	at  time.Time
}

// runAccelerator is the accelerator of a run.
type runAccelerator struct{ run, name string }

// forgetMissing removes what is remembered of servers that a complete list did not find,
// whichever process removed them.
func (r *remembered) forgetMissing(found []*instance) {
	exists := map[types.UID]bool{}
	for _, inst := range found {
		exists[inst.UID] = true
	}
	deleteMissing(&r.reportedExits, exists)
	deleteMissing(&r.powerPresses, exists)
	deleteMissing(&r.accelerators, exists)
	deleteMissing(&r.unansweredQueries, exists)
	deleteMissing(&r.diskFaults, exists)
	deleteMissing(&r.diskResumes, exists)
	deleteMissing(&r.unwrittenExits, exists)
}

// deleteMissing deletes the entries of servers that do not exist. A key is a UID, or a path
// whose last part begins with one.
func deleteMissing[K ~string, V any](m *driver.SyncMap[K, V], exists map[types.UID]bool) {
	m.DeleteFunc(func(key K, _ V) bool { return !exists[uidOf(string(key))] })
}

// claimPowerPress reports whether the power button is to be pressed now, and remembers
// that it is: pressEvery passes between two presses in a run.
func (inst *instance) claimPowerPress() (isDue bool) {
	now := inst.driver.Clock.Now()
	inst.driver.powerPresses.Update(inst.UID, func(last powerPress, ok bool) (powerPress, bool) {
		isDue = !ok || last.run != inst.Run || now.Sub(last.at) >= pressEvery
		if !isDue {
			return last, true
		}
		return powerPress{inst.Run, now}, true
	})
	return isDue
}

// accelerator returns the accelerator that the machine runs under.
func (inst *instance) accelerator() string {
	if inst.Accelerator != "" {
		return inst.Accelerator
	}
	// An older version started the machine, so only its command line names the accelerator,
	// which does not change within a run.
	known, ok := inst.driver.accelerators.Load(inst.UID)
	if !ok || known.run != inst.Run {
		known = runAccelerator{inst.Run, inst.FindAccelerator()}
		inst.driver.accelerators.Store(inst.UID, known)
	}
	return known.name
}

// recordDiskEvent remembers an error that pauses the guest, until the guest is resumed.
func (inst *instance) recordDiskEvent(event qmp.Event) {
	if machine.IsResume(event) {
		inst.driver.diskFaults.Delete(inst.Path)
	}
	if fault, ok := machine.DiskFaultOf(event); ok {
		inst.driver.diskFaults.Store(inst.Path, fault)
	}
}

// findDiskFault returns the error that the guest waits for.
func (inst *instance) findDiskFault(ctx context.Context, c *qmp.Client) error {
	known, _ := inst.driver.diskFaults.Load(inst.Path)
	return machineError(machine.FindDiskFault(ctx, c, known))
}
