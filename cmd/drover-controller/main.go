// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-controller makes servers for the VirtualMachines of a cluster.
// Start with package app.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"cloudnative.tw/drover/cmd/drover-controller/app"
	"cloudnative.tw/drover/cmd/signals"
)

// gcPercent makes the garbage collector run twice as often as by default. Most of
// the memory is long-lived caches, so that costs little and saves much.
const gcPercent = 50

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	signals.SurviveSIGPIPE()
	if err := app.NewCommand().ExecuteContext(signals.StopContext(context.Background())); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "drover-controller:", err)
		os.Exit(1)
	}
}
