// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-vm is the kubectl plugin for the users of VirtualMachines, such as
// `kubectl vm list`. Start with package app.
package main

import (
	"context"
	"os"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/cmd/signals"
)

func main() {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(app.Main(signals.StopContext(context.Background()), os.Args, streams))
}
