// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package specs tests that every spec is either refused or reaches a stable state, and that
// changes can be reverted.
//
// Start with schema.go, which makes valid, boundary and invalid values of each field from the
// CRD's schema; known.go has values that do not follow from the schema. pairs.go combines them
// so that each two values of two fields occur together. The tests apply them to a real API
// server and a controller for each driver: one by one and in combinations (values_test.go), and
// in random sequences of users' actions (users_test.go). A watch checks all states in between
// (states_test.go).
//
// A new field of the CRD is covered without a change here, or a test says which value is
// missing. The full tier runs everything, the gate a fixed sample.
package specs
