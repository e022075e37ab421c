// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history has the names that package rules had before it was one with the others.
package history

import "cloudnative.tw/drover/test/framework/rules"

// Process is a process of a replica.
type Process = rules.Process

// The rules by their earlier names.
const (
	RuleEpochOrder  = rules.O5
	RuleCreatedOnce = rules.O3
	RuleNothingLost = rules.O7
)

// What was in this package.
var (
	Read           = rules.Read
	ByServer       = rules.ByServer
	EpochDecreases = rules.EpochDecreases
	DescribeEntry  = rules.DescribeEntry
)
