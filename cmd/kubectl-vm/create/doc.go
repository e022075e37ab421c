// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package create has the verbs of kubectl vm that create a VM: create, and run, which also
// prints the output of the VM until its job is done.
//
// Start with create.go. run.go adds the log and the exit code of the job.
package create
