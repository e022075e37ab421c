// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// disturbQEMU kills or suspends a machine's QEMU or its supervisor, or removes the machine. It adds the removal to the
// journal, so that the journal has every end of a server.
func disturbQEMU(w *lab.World, dir, path string, s lab.Server, d Disturbance) (undo func() error, err error) {
	switch d {
	case Removed:
		lock, err := lockServer(dir, s.UID)
		if err != nil {
			return nil, err
		}
		defer lock.Release()
		if err := signal(qemus, s, syscall.SIGKILL); err != nil && !errors.Is(err, ErrNoServer) {
			return nil, err
		}
		entry := journal.Entry{
			At: time.Now(), Cluster: w.ClusterID, UID: s.UID, Method: string(d), Action: rules.ActionOutside, Before: s.Snapshot,
		}
		return nil, errors.Join(appendEntry(path, entry), os.RemoveAll(filepath.Join(dir, instance.VMsDir, string(s.UID))))
	case Killed:
		return nil, signal(qemus, s, syscall.SIGKILL)
	case Suspended:
		return suspend(qemus, s)
	case SupervisorKilled:
		return nil, signal(supervisors, s, syscall.SIGKILL)
	case SupervisorSuspended:
		return suspend(supervisors, s)
	case SupervisorHalted:
		return nil, signal(supervisors, s, syscall.SIGSTOP)
	case BothKilled: // first the supervisor, if any, which would record the end of QEMU
		if err := signal(supervisors, s, syscall.SIGKILL); err != nil && !errors.Is(err, ErrNoServer) {
			return nil, err
		}
		return nil, signal(qemus, s, syscall.SIGKILL)
	default:
		return nil, unsupportedError(d)
	}
}

// suspend halts processes of a machine until undo is called, if Drover does not end them before.
func suspend(find processes, s lab.Server) (undo func() error, err error) {
	undo = func() error {
		if err := signal(find, s, syscall.SIGCONT); !errors.Is(err, ErrNoServer) {
			return err
		}
		return nil
	}
	return undo, signal(find, s, syscall.SIGSTOP)
}

// processes returns the PIDs of a server's processes of one kind.
type processes func(types.UID) ([]int, error)

var (
	qemus       processes = processlog.Processes
	supervisors processes = processlog.Supervisors
)

// signal sends a signal to processes of a machine.
func signal(find processes, s lab.Server, sig syscall.Signal) error {
	pids, err := find(s.UID)
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
