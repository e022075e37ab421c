// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decisions has records of what policy.Decide was given and what it returned, so that
// people can read a VirtualMachine's history and derive each decision again.
//
// Start with Record in record.go. A record is an allowlist: it has the fields that Decide reads,
// by name, and nothing else of an object or a server. So no user-data, command line, label or
// annotation gets into it, except for the annotation of the binding.
//
//	record.go     a record, and policy.Input to and from it
//	vm.go         the part of a VirtualMachine
//	observed.go   the part of a server, and errors
//	decision.go   the part of the decision
//	values.go     values that compare with ==
//	read.go       files of records
//	replay.go     derives a decision again
//	sentences.go  a record as people read it
//
// Package recorder of the controller collects records while a controller runs.
package decisions
