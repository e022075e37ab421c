// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kit has the parts of a command line from which every verb of kubectl vm is made: the
// options that all verbs share, flags, tables, colors, progress, questions and errors.
//
// Start with Options in options.go. errors.go says what errors look like, and which exit code
// they have; verb.go checks the arguments of verbs.
package kit
