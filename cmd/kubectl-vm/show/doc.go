// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package show has the verbs of kubectl vm that only read VMs: list, top, show and explain.
//
// Start with view.go, whose describer describes a VM in words for show and explain. diagnose.go finds
// out why a VM is not ready, and listflags.go has the flags that list and top share.
package show
