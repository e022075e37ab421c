// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver is the contract between Drover and whatever runs servers.
//
// Start with the Driver interface in driver.go; its comments are the contract,
// and drivertest.Run checks every driver against them. errors.go holds the
// sentinel errors by which a driver says what kind of failure it met.
//
// The drivers live in folders of their own (fake, docker, qemu), the table package
// lists them, and decorators (metrics, faults) add one concern each.
package driver
