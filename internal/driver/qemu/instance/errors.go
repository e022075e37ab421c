// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/supervised"
)

// machineErrors are the kinds and reasons of the contract for failures of a machine.
var machineErrors = []struct {
	from, kind error
	reason     string
}{
	{machine.ErrRunning, driver.ErrRetry, ""},
	{machine.ErrProgram, driver.ErrUnavailable, ""},
	{machine.ErrMachineTypes, driver.ErrRetry, ""},
	{machine.ErrMachineTypeLost, driver.ErrRetry, driver.ReasonMachineTypeUnavailable},
	{launch.ErrNoUser, driver.ErrRetry, driver.ReasonMachineUserUnavailable},
	{machine.ErrNotStarted, driver.ErrRetry, ""},
	{machine.ErrNoMemory, driver.ErrExhausted, ""},
	{machine.ErrDiskChanged, driver.ErrRetry, driver.ReasonImageUnavailable},
	{machine.ErrNoLog, driver.ErrRetry, ""},
	{machine.ErrNoRoom, driver.ErrExhausted, ""},
	{machine.ErrDiskFault, driver.ErrRetry, driver.ReasonDiskError},
	{supervised.ErrNoQEMU, driver.ErrRetry, ""},
	{failure.ErrFenced, driver.ErrRetry, ""},
	{failure.ErrNotRunning, driver.ErrRetry, ""},
	{failure.ErrUnreachable, driver.ErrRetry, ""},
}

// ContractError gives an error of package machine its kind and reason in the contract. It
// keeps the text, but names the field of a shortage, and returns any other error as it is.
func ContractError(err error) error {
	if shortage, ok := errors.AsType[*memory.ShortageError](err); ok {
		return driver.Errorf(driver.ErrExhausted, "spec.resource.memory: needed %s and %s for QEMU and its supervisor, available %s %s, of which %s are promised to other machines",
			kit.FormatBytes(shortage.Guest), kit.FormatBytes(shortage.Overhead), kit.FormatMegabytes(shortage.Available), shortage.Where, kit.FormatMegabytes(shortage.Promised))
	}
	if errors.Is(err, launch.ErrUserIDsExhausted) {
		return driver.Errorf(driver.ErrExhausted, "%w by --qemu-uid-range", err)
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

// brokenError says what of a server cannot be read, which is most often its record. Its
// owner and its parts are unknown then, so no process changes it until it is repaired.
type brokenError struct{ error }

// wrapBroken makes an error the error of one server, so that the others can still be seen.
// Where the process has run out of descriptors, the error is not the server's.
func wrapBroken(repair string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	return brokenError{fmt.Errorf("%s: %w", repair, err)}
}

// IsBroken reports whether an error says that something of one server cannot be read.
func IsBroken(err error) bool {
	_, broken := errors.AsType[brokenError](err)
	return broken
}

// ClassifyReadError says whether a record that could not be read is gone, may be read
// later, or needs a repair. Removing a server helps only if its record is gone.
func ClassifyReadError(inst *Instance, err error) error {
	if inst.IsGone() {
		return fs.ErrNotExist
	}
	repair := "repair what keeps Drover from reading this"
	if errors.Is(err, fs.ErrNotExist) {
		repair = "repair or remove " + inst.Machine.Path
	}
	return wrapBroken(repair, err)
}

// ClassifyObserveError classifies the error of a failed observation: fs.ErrNotExist stays as
// it is, the error of a broken server is ErrRetry, any other is ErrUnavailable.
func ClassifyObserveError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case IsBroken(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return driver.Errorf(driver.ErrUnavailable, "%w", err)
}
