// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package faults explores what faults do to Drover: it injects them one by one, and
// compares what comes of them with what must hold.
//
// Start with kinds, the table of the kinds of fault; make faults prints what they explored.
// Package lab has what they share, and crash is the first of them. docs/faults.md lists what
// was found.
package faults

import (
	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/lab"
)

// kinds are the kinds of fault, in the order in which they are explored.
var kinds = []lab.Kind{
	crash.Kind("crash points, fake", 16, lab.Fake{}, lab.Fake{Instant: true}),
	crash.Kind("crash points, docker", 6, lab.Docker{}),
	crash.Kind("crash points, qemu", 4, lab.NewQEMU()),
}
