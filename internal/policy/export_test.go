// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

// What the tests look at.
const (
	BindRetry   = bindRetry
	MaxDriver   = maxDriver
	MaxEngineID = maxEngineID
	RemovalPoll = removalPoll
	StableRun   = stableRun

	StableAfterEviction = stableAfterEviction
)

var RunTime = runTime
