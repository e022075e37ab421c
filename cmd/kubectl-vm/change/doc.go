// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change has the verbs of kubectl vm that change VMs that exist: start, stop, restart,
// pause, resume, resize, port and delete.
//
// Start with power.go for verbs that change several VMs (powerverbs.go is their table), and with
// change.go for those that change the spec of one.
package change
