// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package modules

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Insert loads the module in a file. A module that the kernel has already, or whose device is missing, is not an error.
func Insert(file string) error {
	f, err := os.Open(file) //nolint:gosec // a module of the kernel's
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	err = unix.FinitModule(int(f.Fd()), "", 0)
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
