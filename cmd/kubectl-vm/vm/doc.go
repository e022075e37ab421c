// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package vm has the steps that the verbs of kubectl vm share and that are about VMs: to select,
// read, await and describe them, and to find their streams. It prints nothing by itself but the
// note that no VM was found.
//
// Importers call it vms, because most of their functions have a variable vm. Start with
// Selection in select.go; wait.go awaits what read.go has read, and target.go finds streams.
package vm
