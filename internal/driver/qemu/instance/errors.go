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

// machineErrors maps errors of package machine to kinds and reasons of package driver.
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

// ContractError gives an error of package machine a kind and a reason of package driver. It
// names the field of the spec in a shortage of memory, and returns other errors unchanged.
func ContractError(err error) error {
	if shortage, ok := errors.AsType[*memory.ShortageError](err); ok {
		return driver.Errorf(driver.ErrExhausted, "spec.resource.memory: needed %s and %s for QEMU, its supervisor and files, available %s %s, of which %s are promised to other machines",
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

// brokenError says which file of a server cannot be read, most often its record. The server's
// cluster is unknown then, so that no process changes the server until the file is repaired.
type brokenError struct{ error }

// wrapBroken makes an error a brokenError of one server, so that the other servers can still be
// listed. A shortage of file descriptors is not a fault of the server: it becomes ErrUnavailable.
func wrapBroken(repair string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return driver.Errorf(driver.ErrUnavailable, "%w", err)
	}
	return brokenError{fmt.Errorf("%s: %w", repair, err)}
}

// IsBroken reports whether an error says that a file of one server cannot be read.
func IsBroken(err error) bool {
	_, broken := errors.AsType[brokenError](err)
	return broken
}

// ClassifyReadError returns fs.ErrNotExist for a server that is gone, otherwise ErrUnavailable
// or a brokenError. It proposes to remove the server only if just the record is missing.
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

// ClassifyObserveError gives the error of Observe a kind: fs.ErrNotExist stays unchanged, a
// brokenError becomes ErrRetry, and any other error becomes ErrUnavailable.
func ClassifyObserveError(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case IsBroken(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return driver.Errorf(driver.ErrUnavailable, "%w", err)
}
