// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"strings"

	"cloudnative.tw/drover/internal/driver"
)

// check returns an error for a spec that no server can be made from.
func check(spec driver.ServerSpec) error {
	if err := driver.CheckUID(spec.UID); err != nil {
		return err
	}
	if err := driver.CheckPower(spec.Power); err != nil {
		return err
	}
	switch {
	case spec.CPUMilli <= 0:
		return driver.Errorf(driver.ErrInvalid, "resource.cpu is %dm: it must be more than 0", spec.CPUMilli)
	case spec.MemoryBytes <= 0:
		return driver.Errorf(driver.ErrInvalid, "resource.memory is %d bytes: it must be more than 0", spec.MemoryBytes)
	case spec.RootDiskBytes < 0:
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: it must be more than 0", spec.RootDiskBytes)
	case strings.ContainsAny(spec.Image.Source, " \t\r\n"):
		return driver.Errorf(driver.ErrInvalid, "image.source is %q: it must not contain spaces", spec.Image.Source)
	}
	return nil
}

// checkDisk returns an error for a disk size that the existing server cannot have.
func checkDisk(r Record, spec driver.ServerSpec) error {
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < r.RootDiskBytes {
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: it may only grow, and the server has %d",
			spec.RootDiskBytes, r.RootDiskBytes)
	}
	return nil
}
