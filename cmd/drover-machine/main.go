// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-machine runs one QEMU machine, as the first process of a container, or as its
// supervisor on a host. Start with package app.
package main

import (
	"os"
	"runtime/debug"

	"cloudnative.tw/drover/cmd/drover-machine/app"
)

// gcPercent makes the garbage collector run often. The program allocates little, and its memory
// counts for every machine of a host.
const gcPercent = 20

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(app.Main(os.Args[1:]))
}
