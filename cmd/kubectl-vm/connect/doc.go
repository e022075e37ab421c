// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect has the verbs of kubectl vm that connect to one VM: console, exec, logs, ip,
// ssh, cp and port-forward. Each verb has a file.
//
// Start with console.go, the shortest file. Each verb finds its stream by vm.FindTarget.
package connect
