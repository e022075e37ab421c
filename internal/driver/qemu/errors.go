// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/memory"
)

// machineErrors are the kinds and reasons of the contract for what fails in a machine.
var machineErrors = []struct {
	from, kind error
	reason     string
}{
	{machine.ErrRunning, driver.ErrRetry, ""},
	{machine.ErrProgram, driver.ErrUnavailable, ""},
	{machine.ErrMachineTypes, driver.ErrRetry, ""},
	{machine.ErrMachineTypeLost, driver.ErrRetry, driver.ReasonMachineTypeUnavailable},
	{machine.ErrNotStarted, driver.ErrRetry, ""},
	{machine.ErrNoMemory, driver.ErrExhausted, ""},
	{machine.ErrDiskChanged, driver.ErrRetry, driver.ReasonImageUnavailable},
	{machine.ErrNoConsole, driver.ErrRetry, ""},
	{machine.ErrConsoleTaken, driver.ErrConsoleTaken, ""},
	{machine.ErrNoRoom, driver.ErrExhausted, ""},
	{machine.ErrDiskFault, driver.ErrRetry, driver.ReasonDiskError},
}

// contractError gives an error of package machine its kind and reason in the contract. It
// keeps the text, but names the field of a shortage, and returns any other error as it is.
func contractError(err error) error {
	if shortage, ok := errors.AsType[*memory.ShortageError](err); ok {
		return driver.Errorf(driver.ErrExhausted, "resource.memory: %w", shortage)
	}
	for _, e := range machineErrors {
		if !errors.Is(err, e.from) {
			continue
		}
		err = driver.Errorf(e.kind, "%w", err)
		if e.reason != "" {
			err = driver.WithReason(e.reason, err)
		}
		break
	}
	return err
}
