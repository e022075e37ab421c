// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package translate puts the words of the API, of the drivers and of the policy into each other's:
// a VirtualMachine into a driver's spec (spec.go), and objects and servers into the facts that
// decisions are made from (facts.go). It is pure.
package translate
