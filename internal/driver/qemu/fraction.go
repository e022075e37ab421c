// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"

	"cloudnative.tw/drover/internal/machine/cgroup"
)

// planGroup sets where a run's control group will be, if its CPUs are not whole.
func (d *Driver) planGroup(s *instance, cpuMilli int64) {
	s.CPUGroup, s.CPUNote = "", ""
	if cpuMilli%1000 == 0 {
		return
	}
	g, err := d.groups()
	if err != nil {
		d.noteWhole(s, cpuMilli, err)
		return
	}
	s.CPUGroup = g.GroupPath(string(s.UID))
}

// limitCPU limits a QEMU to its fraction of a CPU. Where that is not possible the QEMU
// keeps the whole CPU, and the server's note says so.
func (d *Driver) limitCPU(ctx context.Context, s *instance) {
	if s.CPUGroup == "" {
		return
	}
	g, err := d.groups()
	if err == nil {
		err = g.LimitCPU(s.CPUGroup, s.Settings.CPUMilli, func() int { return s.PID() })
	}
	if err != nil {
		d.dropGroup(ctx, s.CPUGroup)
		s.CPUGroup = ""
		d.noteWhole(s, s.Settings.CPUMilli, err)
	}
}

func (d *Driver) noteWhole(s *instance, cpuMilli int64, err error) {
	s.CPUNote = fmt.Sprintf("resource.cpu: %dm is rounded up to %dm, since a fraction needs a control group: %v", cpuMilli, 1000*wholeCPUs(cpuMilli), err)
	d.Log.Info("Machine has whole CPUs: it could not be held to a fraction", "uid", s.UID, "cpuMilli", cpuMilli, "cause", err.Error())
}

func wholeCPUs(cpuMilli int64) int64 { return (cpuMilli + 999) / 1000 }

// dropGroup removes the control group of a run that is over. If that fails, the remaining
// group limits no process.
func (d *Driver) dropGroup(ctx context.Context, group string) {
	if err := cgroup.Remove(ctx, group); err != nil {
		d.Log.Info("Control group could not be removed", "group", group, "cause", err.Error())
	}
}
