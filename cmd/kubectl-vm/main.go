// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-vm is the kubectl plugin with which people use VirtualMachines:
// `kubectl vm list`. Start with package app.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/cmd/kubectl-vm/app"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process immediately
	code := app.Main(ctx, os.Args, genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}
