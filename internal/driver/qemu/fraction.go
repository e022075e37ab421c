// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"

	"cloudnative.tw/drover/internal/machine/cgroup"
)

// planCPUGroup sets where a run's control group will be, if its CPUs are not whole.
func (inst *instance) planCPUGroup(cpuMilli int64) {
	inst.CPUGroup, inst.CPUNote = "", ""
	if cpuMilli%1000 == 0 {
		return
	}
	g, err := inst.driver.groups()
	if err != nil {
		inst.noteWholeCPUs(cpuMilli, err)
		return
	}
	inst.CPUGroup = g.GroupPath(string(inst.UID))
}

// limitCPU limits a QEMU to its fraction of a CPU. Where that is not possible the QEMU
// keeps the whole CPU, and the server's note says so.
func (inst *instance) limitCPU(ctx context.Context) {
	if inst.CPUGroup == "" {
		return
	}
	g, err := inst.driver.groups()
	if err == nil {
		err = g.LimitCPU(inst.CPUGroup, inst.Settings.CPUMilli, func() int { return inst.PID() })
	}
	if err != nil {
		inst.driver.removeGroup(ctx, inst.CPUGroup)
		inst.CPUGroup = ""
		inst.noteWholeCPUs(inst.Settings.CPUMilli, err)
	}
}

func (inst *instance) noteWholeCPUs(cpuMilli int64, err error) {
	inst.CPUNote = fmt.Sprintf("resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	inst.driver.Log.Info("Machine has whole CPUs: it could not be held to a fraction", "uid", inst.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// removeGroup removes the control group of a run that is over. If that fails, the remaining
// group limits no process.
func (d *Driver) removeGroup(ctx context.Context, group string) {
	if err := cgroup.Remove(ctx, group); err != nil {
		d.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
	}
}
