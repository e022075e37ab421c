// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"sync"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
)

// diskFaults are the disk errors that guests wait for. QEMU itself keeps only whether a
// disk lacked room. It reports any other error once, to those who listen at that time: to
// one controller of several, and to the one that resumes the guest in vain.
type diskFaults struct {
	heard sync.Map // a diskFault by the machine's directory
	// resumed holds, by directory, when a guest was resumed after a fault.
	resumed sync.Map
}

// recordEvent records an error that pauses a guest, until the guest is resumed.
func (f *diskFaults) recordEvent(path string, event qmp.Event) {
	if machine.IsResume(event) {
		f.heard.Delete(path)
	}
	if fault, ok := machine.DiskFaultOf(event); ok {
		f.heard.Store(path, fault)
	}
}

// findFault returns the error that a guest waits for.
func (f *diskFaults) findFault(ctx context.Context, path string, c *qmp.Client) error {
	heard, _ := f.heard.Load(path)
	fault, _ := heard.(machine.DiskFault)
	return contractError(machine.FindDiskFault(ctx, c, fault))
}

// observeDiskFault finds the disk error that has paused a guest.
func (inst *instance) observeDiskFault(ctx context.Context) {
	if inst.status != machine.StatusIOError {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listQueryWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		inst.fault = contractError(machine.DiskFault{}.Explain())
		return
	}
	defer c.Close()
	inst.fault = inst.driver.faults.findFault(ctx, inst.Path, c)
}
