// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package app is the program kubectl-vm: the command with all verbs, its help and the completion of
// shells. `drover vm` is the same command.
//
// Start with NewCommand in command.go, which lists the verbs. Each verb is in a file with its name,
// in one of the packages beside this one. A package imports only those before it in this order: kit,
// vm, spec, connect and show, change, create, admin.
package app
