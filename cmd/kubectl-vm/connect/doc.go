// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect has the verbs of kubectl vm that connect to one VM: console, exec, logs, ip,
// ssh, cp and port-forward, a file each.
//
// Start with console.go, which is the shortest. Each verb finds its stream by vm.FindTarget.
package connect
