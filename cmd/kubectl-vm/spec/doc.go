// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spec builds a VM from the flags of the command line: its spec, the Secret with its
// user-data, its ports and the ssh keys of its users.
//
// Start with Flags in build.go.
package spec
