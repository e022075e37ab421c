// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver is the contract between Drover and the engines that run servers.
//
// Start with the Driver interface in driver.go. Its comments are the contract,
// and drivertest.Run checks every driver against them. errors.go holds the
// sentinel errors by which a driver reports the kind of a failure.
//
// Each driver is a folder below this one (fake, docker, qemu, pod), and package registry lists
// them. The decorators fencing, metrics, journal and faultinject add one concern each.
package driver
