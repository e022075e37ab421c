// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app puts the controller together: flags, drivers, inventories, lanes.
//
// Start with Run in run.go. The same Run serves drover-controller and the
// all-in-one program drover.
package app
