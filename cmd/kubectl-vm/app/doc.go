// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app has the verbs of the program kubectl-vm, one file each, which `drover vm`
// offers too.
//
// Start with NewCommand in command.go. options.go has the flags, streams, clock
// and clients that all verbs share. errors.go says what errors look like, and which exit code
// they have.
package app
