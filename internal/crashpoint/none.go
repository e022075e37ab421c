// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !faults

// Package crashpoint marks operations before and after which a process may crash, for
// the tests of test/faults. In a normal build the package is empty, and the compiler leaves
// no trace of it. In a build with the tag faults, environment variables make it record the
// operations, or end the process at one of them.
package crashpoint

import "context"

// Point is one operation on one object.
type Point struct{}

// Begin marks the begin of an operation.
func Begin(string, string) Point { return Point{} }

// Inject returns call.
func (Point) Inject(call func(context.Context) error) func(context.Context) error { return call }

// End marks the end of the operation.
func (Point) End() {}
