// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app assembles the controller: flags, drivers, inventories and per-driver
// controllers.
//
// Start with Run in run.go. Both drover-controller and the all-in-one program
// drover call it.
package app
