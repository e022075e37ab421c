// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-machine runs one QEMU machine, as the first process of a container. Start
// with package app.
package main

import (
	"os"
	"runtime/debug"

	"cloudnative.tw/drover/cmd/drover-machine/app"
)

// gcPercent makes the garbage collector run often: the program does next to nothing, and there
// is one beside each machine.
const gcPercent = 20

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	os.Exit(app.Main(os.Args[1:]))
}
