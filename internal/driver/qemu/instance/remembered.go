// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

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
	// ReportedExits holds the last run whose exit was reported to a caller.
	ReportedExits driver.SyncMap[types.UID, string]
	// PowerPresses holds when the power button was pressed last.
	PowerPresses driver.SyncMap[types.UID, PowerPress]
	// UnansweredQueries holds the directories of machines whose QEMU did not answer a List.
	UnansweredQueries driver.SyncMap[string, bool]
	// diskFaults holds, by directory, the disk error that a guest waits for.
	diskFaults driver.SyncMap[string, machine.DiskFault]
	// DiskResumes holds, by directory, when a guest was resumed after a disk error.
	DiskResumes driver.SyncMap[string, time.Time]
	// UnwrittenExits holds, by file, the exits that could not be written for lack of space.
	UnwrittenExits driver.SyncMap[string, driver.Exit]
}

// PowerPress is a press of the power button in a run.
type PowerPress struct {
	Run string
	At  time.Time
}

// ForgetMissing removes what is remembered of servers that a complete list did not find,
// whichever process removed them.
func (r *remembered) ForgetMissing(found []*Instance) {
	exists := map[types.UID]bool{}
	for _, inst := range found {
		exists[inst.UID] = true
	}
	deleteMissing(&r.ReportedExits, exists)
	deleteMissing(&r.PowerPresses, exists)
	deleteMissing(&r.UnansweredQueries, exists)
	deleteMissing(&r.diskFaults, exists)
	deleteMissing(&r.DiskResumes, exists)
	deleteMissing(&r.UnwrittenExits, exists)
}

// deleteMissing deletes the entries of servers that do not exist. A key is a UID, or a path
// whose last part begins with one.
func deleteMissing[K ~string, V any](m *driver.SyncMap[K, V], exists map[types.UID]bool) {
	m.DeleteFunc(func(key K, _ V) bool { return !exists[UIDOf(string(key))] })
}

// ClaimPowerPress reports whether the power button is to be pressed now, and remembers
// that it is: machine.PressEvery passes between two presses in a run.
func (inst *Instance) ClaimPowerPress() (isDue bool) {
	now := inst.Host.Clock.Now()
	inst.Host.PowerPresses.Update(inst.UID, func(last PowerPress, ok bool) (PowerPress, bool) {
		isDue = !ok || last.Run != inst.Run || now.Sub(last.At) >= machine.PressEvery
		if !isDue {
			return last, true
		}
		return PowerPress{inst.Run, now}, true
	})
	return isDue
}

// recordDiskEvent remembers an error that pauses the guest, until the guest is resumed.
func (inst *Instance) recordDiskEvent(event qmp.Event) {
	if machine.IsResume(event) {
		inst.Host.diskFaults.Delete(inst.Path)
	}
	if fault, ok := machine.DiskFaultOf(event); ok {
		inst.Host.diskFaults.Store(inst.Path, fault)
	}
}

// findDiskFault returns the error that the guest waits for.
func (inst *Instance) findDiskFault(ctx context.Context, c *qmp.Client) error {
	known, _ := inst.Host.diskFaults.Load(inst.Path)
	return ContractError(machine.FindDiskFault(ctx, c, known))
}
