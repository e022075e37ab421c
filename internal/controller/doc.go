// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller makes one server exist for every VirtualMachine and keeps it
// as the object specifies.
//
// Start with Reconcile in reconcile.go. It reads top-down as five phases, each in
// one place. Each takes values and returns one: facts, a decision, the facts after a step.
//
//	finalizer.go  ensureFinalizer: writes the finalizer and the binding first
//	gather.go     the VM, its server, and live reads before a step that needs them;
//	              translate/ has the facts of both that a decision may depend on
//	../policy     Decide: a pure function from these to an action and a status
//	act.go        carries out the action through the driver
//	report.go     one status write if something changed, then the events
//
// outcome.go records the outcome of an action, status.go builds the status, and
// events.go the events. memory.go and facttimes/ keep facts of earlier passes of this process,
// and vmclient/ the objects that it has written itself.
//
// setup.go sets up a controller for each driver and fills the queue of a new
// leader. The work queue is in queue/, and probe/ runs the readiness probes.
package controller
