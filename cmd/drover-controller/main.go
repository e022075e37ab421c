// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover-controller makes servers for the VirtualMachines of a cluster.
// Start with the app package.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cloudnative.tw/drover/cmd/drover-controller/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := app.NewCommand().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "drover-controller:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop was called
	}
}
