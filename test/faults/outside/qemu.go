// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/faults/lab"
)

// disturbQEMU kills or suspends a machine's QEMU, or removes the machine.
func disturbQEMU(w *lab.World, dir string, s lab.Server, d Disturbance) (undo func() error, err error) {
	switch d {
	case Removed:
		lock, err := lockServer(dir, types.UID(s.UID))
		if err != nil {
			return nil, err
		}
		defer lock.Release()
		w.NoteRemoval(s)
		if err := signal(s, syscall.SIGKILL); err != nil && !errors.Is(err, ErrNoServer) {
			return nil, err
		}
		return nil, os.RemoveAll(filepath.Join(dir, instance.VMsDir, s.UID))
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
	case Stopped, Paused, Resized, Renamed, Away, Exchanged, ClockAhead, ClockBehind:
	}
	return nil, unknown(d)
}

// signal sends a signal to the processes of a machine.
func signal(s lab.Server, sig syscall.Signal) error {
	pids, err := processlog.Processes(types.UID(s.UID))
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
