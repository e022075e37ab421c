// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build nextrelease

package config

// Version is one more than in this release, for tests of upgrades.
const Version = 10
