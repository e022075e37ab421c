// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover is Drover for a host without a cluster: etcd, kube-apiserver
// and the Drover controller in one process.
//
// Start with up.go, which lists the parts that `drover up` runs; internal/program has the
// other commands.
package main

import (
	"os"

	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/standalone/internal/embedded"
	"cloudnative.tw/drover/standalone/internal/program"
)

// droverVersion is set by the linker.
var droverVersion = "dev"

func main() {
	installation.Embedded = embedded.Machine()
	os.Exit(program.Program{Version: droverVersion, Up: runUp}.Main())
}
