// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/launch"
)

// PrepareRun returns the description of the machine that a start would run.
func PrepareRun(ctx context.Context, inst *Instance, spec driver.ServerSpec, files *launch.Files) (launch.MachineConfig, error) {
	s := &start{inst: inst, host: inst.Host, spec: spec, files: files}
	err := s.prepareRun(ctx, Platform{"pc-q35-7.2", launch.AccelTCG})
	return s.machine, err
}
