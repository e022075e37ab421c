// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"syscall"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/faults/lab"
)

// disturbPod kills or suspends the QEMU of a pod's machine, or the supervisor, which is the first process of the
// container. It halts processes forever only in the first pod: every workload with this fault ends the first pod,
// which kills them after the grace period.
func disturbPod(e lab.Pod, w *lab.World, s lab.Server, d Disturbance) (undo func() error, err error) {
	var machines processes = func(uid types.UID) ([]int, error) { return e.Machines(w, uid), nil }
	switch d {
	case Killed:
		return nil, signal(qemus, s, syscall.SIGKILL)
	case Suspended:
		return suspend(qemus, s)
	case ContainerKilled:
		return nil, signal(machines, s, syscall.SIGKILL)
	case SupervisorSuspended:
		return suspend(machines, s)
	case Halted, SupervisorHalted:
		if len(e.FirstMachine(w, s.UID)) == 0 {
			return nil, ErrNoServer
		}
		return nil, signal(map[Disturbance]processes{Halted: qemus, SupervisorHalted: machines}[d], s, syscall.SIGSTOP)
	default:
		return nil, unsupportedError(d)
	}
}
