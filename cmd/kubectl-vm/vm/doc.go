// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm has the steps of verbs that are about VMs: to select, read, await and describe VMs, and
// to find their streams. The only text that it prints is the note that no VM was found.
//
// Importers call the package vms, because most of their functions have a variable vm. Start with
// Selection in select.go. read.go reads VMs, wait.go waits for them, and target.go finds streams.
package vm
