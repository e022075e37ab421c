// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !nextrelease

package wire

// extraVerbs are the operations that a build with the tag nextrelease adds.
var extraVerbs []string
