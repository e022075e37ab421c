// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nextrelease

package wire

// OpNext is an operation that the release before does not have, for tests of upgrades.
const OpNext = "next"

var extraVerbs = []string{OpNext}
