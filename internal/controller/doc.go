// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller makes one server exist for every VirtualMachine and keeps it
// as the object specifies.
//
// Start with Reconcile in reconcile.go. It calls five phases in order. A phase takes
// values and returns a value: facts, a decision, or the facts after a step.
//
//	finalizer.go  ensureFinalizer: writes the finalizer and the binding first
//	gather.go     reads the VM and its server, and reads both live before a step that
//	              depends on them; translate/ extracts the facts for a decision
//	../policy     Decide: a pure function from these facts to an action and a status
//	act.go        carries out the action through the driver
//	report.go     writes the status once if something changed, then sends the events
//
// outcome.go records the outcome of an action, status.go builds the status, and
// events.go the events. memory.go and facttimes/ keep facts from earlier passes of this
// process, and vmclient/ keeps the objects that this process has written.
//
// setup.go sets up a controller for each driver and fills the queue of a new
// leader. The work queue is in queue/, and probe/ runs the readiness probes.
package controller
