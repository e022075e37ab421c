// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kit has the parts of a command line that the verbs of kubectl vm share: options, flags,
// tables, colors, progress, questions and errors.
//
// Start with Options in options.go. errors.go prints errors and chooses the exit code. verb.go checks
// the arguments of verbs.
package kit
