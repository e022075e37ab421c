// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package change has the verbs of kubectl vm that change existing VMs: start, stop, restart, pause,
// resume, resize, port and delete.
//
// Start with power.go for the verbs that change the power state of several VMs (powerverbs.go is
// their table), and with change.go for the verbs that change the spec of one VM.
package change
