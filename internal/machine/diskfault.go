// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"encoding/json"
	"strings"
	"syscall"

	"cloudnative.tw/drover/internal/machine/qmp"
)

// DiskFault is a disk error that pauses a guest: the event BLOCK_IO_ERROR. A later query of
// QEMU tells only whether a disk lacked room. QEMU reports any other error once, in an event,
// and again when the guest is resumed but the disk still fails.
type DiskFault struct {
	Node      string `json:"node-name"`
	Operation string `json:"operation"` // read or write
	Action    string `json:"action"`
	Reason    string `json:"reason"` // the text of errno
}

// DiskFaultOf returns the disk error that an event reports, if it pauses the guest.
func DiskFaultOf(event qmp.Event) (fault DiskFault, ok bool) {
	ok = event.Name == "BLOCK_IO_ERROR" && json.Unmarshal(event.Data, &fault) == nil && fault.Action == "stop"
	return fault, ok
}

// IsResume reports whether an event says that the guest was resumed, or started.
func IsResume(event qmp.Event) bool { return event.Name == "RESUME" }

// IsReset reports whether an event says that the machine boots again.
func IsReset(event qmp.Event) bool { return event.Name == "RESET" }

// FindDiskFault returns the error that pauses a guest. known is the last reported error, which
// may be empty.
func FindDiskFault(ctx context.Context, c Executor, known DiskFault) DiskFault {
	if lacksRoom(ctx, c) {
		return DiskFault{Reason: syscall.ENOSPC.Error()}
	}
	return known
}

// lacksRoom asks QEMU whether a disk waits for room.
func lacksRoom(ctx context.Context, c Executor) bool {
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

// Explain returns an error of the kind ErrNoRoom or ErrDiskFault. The guest repeats the failed
// request when it is resumed.
func (f DiskFault) Explain() error {
	const paused = "the guest was paused by an error of its disk"
	where := paused
	if f.Node != "" {
		where += " " + f.Node + " (" + f.Operation + ")"
	}
	is := func(e syscall.Errno) bool { return strings.EqualFold(f.Reason, e.Error()) }
	switch {
	case is(syscall.ENOSPC):
		return errorf(ErrNoRoom, "%s: %s: see whether the host's disk is full", where, syscall.ENOSPC.Error())
	case is(syscall.EDQUOT):
		return errorf(ErrNoRoom, "%s: %s: raise the quota of Drover's user, or free some room", where, f.Reason)
	case f.Reason == "":
		return errorf(ErrDiskFault, "%s: see the host's kernel log, and whether a quota is used up", where)
	}
	return errorf(ErrDiskFault, "%s: %s: see the host's kernel log", where, f.Reason)
}
