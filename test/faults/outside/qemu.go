// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// disturbQEMU kills or suspends a machine's QEMU, or removes the machine. The journal gets the
// removal too, so that it shows every end of a server.
func disturbQEMU(w *lab.World, dir, path string, s lab.Server, d Disturbance) (undo func() error, err error) {
	switch d {
	case Removed:
		lock, err := lockServer(dir, s.UID)
		if err != nil {
			return nil, err
		}
		defer lock.Release()
		if err := signal(s, syscall.SIGKILL); err != nil && !errors.Is(err, ErrNoServer) {
			return nil, err
		}
		entry := journal.Entry{
			At: time.Now(), Cluster: w.ClusterID, UID: s.UID, Method: string(d), Action: rules.ActionOutside, Before: s.Snapshot,
		}
		return nil, errors.Join(appendEntry(path, entry), os.RemoveAll(filepath.Join(dir, instance.VMsDir, string(s.UID))))
	case Killed:
		return nil, signal(s, syscall.SIGKILL)
	case Suspended:
		undo := func() error {
			if err := signal(s, syscall.SIGCONT); !errors.Is(err, ErrNoServer) {
				return err
			}
			return nil // Drover has ended it meanwhile
		}
		return undo, signal(s, syscall.SIGSTOP)
	case Stopped, Paused, Resized, Renamed, Away, Exchanged, Restored, Copied, Superseded, ClockAhead, ClockBehind:
	}
	return nil, unknown(d)
}

// signal sends a signal to the processes of a machine.
func signal(s lab.Server, sig syscall.Signal) error {
	pids, err := processlog.Processes(s.UID)
	if err == nil && len(pids) == 0 {
		err = ErrNoServer
	}
	for _, pid := range pids {
		if killErr := syscall.Kill(pid, sig); !errors.Is(killErr, syscall.ESRCH) {
			err = errors.Join(err, killErr)
		}
	}
	return err
}
