// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package translate converts between the types of the API, of the drivers and of the policy, with pure
// functions. Start with ServerSpec in spec.go, which makes a driver's spec from a VirtualMachine.
// facts.go extracts the facts of objects and servers on which decisions depend.
package translate
