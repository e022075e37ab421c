// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upgrade tests that another version of Drover takes over the servers of an
// earlier one, and that going back works. make test-upgrade runs it.
package upgrade
