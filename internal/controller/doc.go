// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller makes one server exist for every VirtualMachine and keeps
// it as the object says.
//
// Start with Reconcile in reconcile.go. It reads top-down as five phases, one
// file each:
//
//	bind.go      ensureFinalizer: the finalizer and the binding come first
//	gather.go    the VM, the inventory's answer for its UID, what was left unreported
//	decide.go    a pure function from both to a plan: all policy is here
//	act.go       carries the plan out through the driver
//	report.go    one status write, if something changed; events after it
//
// sightings.go has the instants that waits count from, lane.go gives each driver a
// queue and workers of its own, takeover.go fills the queue of a new leader, and
// finish.go ends a deletion.
package controller
