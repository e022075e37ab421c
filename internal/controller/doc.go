// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller makes one server exist for every VirtualMachine and keeps it
// as the object specifies.
//
// Start with Reconcile in reconcile.go. It reads top-down as five phases, one
// file each:
//
//	bind.go      ensureFinalizer: writes the finalizer and the binding first
//	gather.go    the VM, the inventory's answer for its UID, what was left unreported
//	decide.go    a pure function from these to a plan: all policy is here
//	act.go       carries out the plan through the driver
//	report.go    one status write if something changed, then the events
//
// sightings.go records the instants that waits count from. lane.go sets up the
// per-driver controllers, each with its own work queue and workers. takeover.go
// fills the queue of a new leader, and finish.go ends a deletion.
package controller
