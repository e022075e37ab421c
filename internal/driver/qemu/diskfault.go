// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
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

// diskFault is the event BLOCK_IO_ERROR.
type diskFault struct {
	Node      string `json:"node-name"`
	Operation string `json:"operation"` // read or write
	Action    string `json:"action"`
	Reason    string `json:"reason"` // errno's text
}

// hear records an error that pauses a guest, until the guest is resumed.
func (f *diskFaults) hear(path string, event qmp.Event) {
	if event.Name == "RESUME" {
		f.heard.Delete(path)
	}
	var fault diskFault
	if event.Name != "BLOCK_IO_ERROR" || json.Unmarshal(event.Data, &fault) != nil || fault.Action != "stop" {
		return
	}
	f.heard.Store(path, fault)
}

// find returns the error that a guest waits for.
func (f *diskFaults) find(ctx context.Context, path string, c *qmp.Client) error {
	if lacksRoom(ctx, c) {
		return diskFault{Reason: syscall.ENOSPC.Error()}.explain()
	}
	heard, _ := f.heard.Load(path)
	fault, _ := heard.(diskFault)
	return fault.explain()
}

// lacksRoom asks QEMU whether a disk waits for room.
func lacksRoom(ctx context.Context, c *qmp.Client) bool {
	var disks []struct {
		Status string `json:"io-status"`
	}
	if err := c.Execute(ctx, "query-block", nil, &disks); err != nil {
		return false
	}
	for _, d := range disks {
		if d.Status == "nospace" {
			return true
		}
	}
	return false
}

// explain returns the error that the guest waits for. The guest continues with the failed
// request once that succeeds.
func (f diskFault) explain() error {
	const paused = "the guest was paused by an error of its disk"
	where := paused
	if f.Node != "" {
		where += " " + f.Node + " (" + f.Operation + ")"
	}
	is := func(e syscall.Errno) bool { return strings.EqualFold(f.Reason, e.Error()) }
	switch {
	case is(syscall.ENOSPC):
		return driver.Errorf(driver.ErrExhausted, "%s: %s: see whether the host's disk is full", where, f.Reason)
	case is(syscall.EDQUOT):
		return driver.Errorf(driver.ErrExhausted, "%s: %s: raise the quota of Drover's user, or free some room", where, f.Reason)
	case f.Reason == "":
		return driver.WithReason(driver.ReasonDiskError, driver.Errorf(driver.ErrRetry, "%s: see the host's kernel log, and whether a quota is used up", where))
	}
	return driver.WithReason(driver.ReasonDiskError, driver.Errorf(driver.ErrRetry, "%s: %s: see the host's kernel log", where, f.Reason))
}

// findFault finds the disk error that has paused a guest.
func (d *Driver) findFault(ctx context.Context, s *server) {
	if s.status != statusIOError {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, glanceWithin)
	defer cancel()
	c, err := s.dial(ctx, ctlSocket, nil)
	if err != nil {
		s.fault = diskFault{}.explain()
		return
	}
	defer c.Close()
	s.fault = d.faults.find(ctx, s.path, c)
}
