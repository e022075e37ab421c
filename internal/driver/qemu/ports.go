// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"slices"
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

// report returns the server as the driver contract describes it, with the addresses to
// reach it. A machine's own address means nothing outside its QEMU.
func (inst *instance) report() driver.Server {
	out := inst.describeServer()
	if inst.isAlive() {
		out.Accelerator = inst.accelerator()
	}
	if !inst.isAlive() && !inst.Retained && inst.broken == nil {
		inst.driver.reportedExits.Store(inst.UID, inst.Run)
	}
	if !inst.isAlive() || len(inst.Forwards) == 0 {
		return out
	}
	for _, f := range inst.Forwards {
		out.Ports = append(out.Ports, driver.Port{Protocol: strings.ToUpper(f.Protocol), Port: f.Port, HostPort: f.HostPort, HostIP: f.HostIP})
		address := f.HostIP
		if address == "" {
			address = inst.driver.address.Current(inst.driver.Clock.Now())
		}
		if !slices.Contains(out.Addresses, address) {
			out.Addresses = append(out.Addresses, address)
		}
	}
	return out
}
