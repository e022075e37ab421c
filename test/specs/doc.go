// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package specs tests that every spec is refused or settles, and that a change of it can be
// taken back.
//
// Start with schema.go, which makes valid, boundary and invalid values of each field from the
// CRD's schema; known.go has those that no schema says. pairs.go combines them so that each
// two values of two fields meet. The tests apply them to a real API server and a controller,
// one by one and in these combinations (values_test.go), on each driver, and random sequences
// of users' actions (users_test.go). A watch sees every state in between (states_test.go).
//
// A new field of the CRD is covered without a change here, or a test says which value is
// missing. The full tier runs everything; the gate a sample, always the same.
package specs
