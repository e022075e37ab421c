// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/launch"
)

// PrepareRun returns the description of the machine that a start would run.
func (inst *Instance) PrepareRun(ctx context.Context, spec driver.ServerSpec, files *launch.Files) (launch.Config, error) {
	return inst.prepareRun(ctx, spec, Platform{"pc-q35-7.2", launch.AccelTCG}, files)
}
